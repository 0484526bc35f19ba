"""JSON from elsewhere, within limits: no NaN, no halves of surrogate pairs, no more items than memory has room for.

A few bytes of JSON take hundreds as objects, so that the size of a text bounds nothing; the number of its commas and
brackets does, and is counted before anything is parsed.

YAML from elsewhere, within limits: aliases may not multiply, and what cannot be read is one error.

A few lines of aliases to aliases stand for more values than any memory holds; so the nodes are weighed, each as
often as it is referred to, before a value is made of any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import yaml

from shared.core.errors import BadInput, TooLarge, WireError

MAX_ITEMS = 2**22
"""How many commas and brackets a text may have."""


def within(n: int, most: int, what: str) -> None:
    """Refuse more than a limit.

    Raises:
        TooLarge: naming both numbers.
    """
    if n > most:
        raise TooLarge(f"{n} {what}, the limit is {most}")


def check_items(text: str) -> None:
    """Refuse what takes too much memory as objects.

    Raises:
        TooLarge: more than `MAX_ITEMS`.
    """
    within(sum(text.count(mark) for mark in ",[{"), MAX_ITEMS, "items of JSON")


def parse(text: str | bytes, what: str) -> Any:
    """The value of a text; `what` names it in errors. Lone surrogates are left for whoever walks over the value.

    Raises:
        WireError: it is no JSON, or holds a number that is none.
    """
    try:
        plain = text if isinstance(text, str) else text.decode()
        check_items(plain)
        return json.loads(plain, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the {what} is no JSON: {str(error)[:200]}") from None


def _finite(text: str) -> float:
    """A JSON number; also `1e999` is none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys that are no text, and those that begin with `$`, which are the codec's own."""
    for key in keys:
        if key.startswith("$"):
            raise WireError("a key of a record may not begin with $")
        check_text(key)


def check_text(text: str) -> None:
    """Refuse half of a surrogate pair: JSON can say it, but it can be neither stored nor answered."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise WireError("a text holds a lone surrogate") from None


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
