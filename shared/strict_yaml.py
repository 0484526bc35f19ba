"""YAML from elsewhere, within limits: aliases may not multiply, and what cannot be read is one error.

A few lines of aliases to aliases stand for more values than any memory holds; so the nodes are weighed, each as
often as it is referred to, before a value is made of any.
"""

from __future__ import annotations

from typing import Any

import yaml

from shared.errors import BadInput

MAX_CHARS = 2**20
MAX_NODES = 2**20
"""With aliases written out."""
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What PyYAML raises: besides its own errors those of the functions that make values."""


def load(text: str, what: str) -> Any:
    """The value of a text; `what` names it in errors.

    Raises:
        BadInput: it is no YAML, too long, or stands for too much.
    """
    if len(text) > MAX_CHARS:
        raise BadInput(f"{what} has {len(text)} characters, the limit is {MAX_CHARS}")
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _weight(node, {}) > MAX_NODES:
            raise BadInput(f"{what} stands for more than {MAX_NODES} values: too many aliases, or one of itself")
        return loader.construct_document(node)
    except _UNREADABLE as error:
        raise BadInput(f"{what} is no YAML: {str(error)[:300] or type(error).__name__}") from None
    finally:
        loader.dispose()


def _weight(node: Any, known: dict[int, int]) -> int:
    """How many nodes there are below, aliases written out; of a node within itself more than any limit."""
    if id(node) not in known:
        known[id(node)] = MAX_NODES + 1  # until it is known: whoever meets it meanwhile is inside it
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for item in below for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_weight(part, known) for part in parts)
    return known[id(node)]
