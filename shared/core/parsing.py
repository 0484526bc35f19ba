"""JSON and YAML from other processes and users, within limits that hold before any value is made.

The length of a text does not bound the memory of its values. A few bytes of JSON take hundreds as objects, so its
commas and brackets are counted before it is parsed. A few lines of YAML with aliases to aliases stand for more values
than any memory holds, so its nodes are counted, each as often as it is referred to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import yaml

from shared.core.errors import BadInput, TooLarge, WireError

MAX_ITEMS = 2**22
"""Most commas and brackets of a JSON text."""
MAX_CHARS = 2**20
"""Most characters of a YAML text."""
MAX_NODES = 2**20
"""Most values of a YAML text, with aliases written out."""
_STRING = "tag:yaml.org,2002:str"
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What PyYAML raises: its own errors, and those of the functions that make values."""


# ---- JSON


def within(n: int, most: int, what: str) -> None:
    """Refuses a number above its limit.

    Raises:
        TooLarge: names both.
    """
    if n > most:
        raise TooLarge(f"{n} {what}, the limit is {most}")


def check_items(text: str) -> None:
    """Refuses a JSON text that would take too much memory as objects.

    Raises:
        TooLarge: it has more than `MAX_ITEMS` items.
    """
    within(sum(text.count(mark) for mark in ",[{"), MAX_ITEMS, "items of JSON")


def parse(text: str | bytes, what: str) -> Any:
    """Returns the value of a JSON text. Lone surrogates pass; `check_text` refuses them.

    Args:
        text: in UTF-8 if bytes.
        what: names the text in errors.

    Raises:
        WireError: it is not valid JSON, or has a number that is NaN or infinite.
        TooLarge: it has more than `MAX_ITEMS` items.
    """
    try:
        plain = text if isinstance(text, str) else text.decode()
        check_items(plain)
        return json.loads(plain, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the {what} is not valid JSON: {str(error)[:200]}") from None


def check_unambiguous(text: bytes, what: str) -> None:
    """Refuses JSON that other programs may read otherwise.

    Raises:
        BadInput: names a key that comes twice in an object.
        WireError: it is not JSON in UTF-8, without a byte order mark.
    """
    try:
        json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the {what} is not JSON in UTF-8: {str(error)[:200]}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON without repeated keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse_repeated([key for key, _ in pairs], "an object of JSON")
    return found


def _refuse_repeated(keys: list[str], where: str) -> None:
    """Refuses keys of one mapping of which one comes twice.

    Raises:
        BadInput: names the key.
    """
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise BadInput(f"{key[:100]}: the key comes twice in {where}", field=key[:100])
        seen.add(key)


def _finite(text: str) -> float:
    """Returns a JSON number; refuses NaN, infinity, and numbers beyond a double, as `1e999`."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def check_keys(keys: Iterable[str]) -> None:
    """Refuses keys with a lone surrogate, and those that begin with `$`, which the codec uses itself.

    Raises:
        WireError: a key is refused.
    """
    keys = tuple(keys)
    joined = "".join(keys)
    if "$" not in joined and joined.isascii():  # as nearly always
        return
    for key in keys:
        if key.startswith("$"):
            raise WireError("a key of a record may not begin with $")
        check_text(key)


def check_text(text: str) -> None:
    """Refuses a lone surrogate: JSON can write half of a pair, but UTF-8 cannot.

    Raises:
        WireError: the text has one.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise WireError("a text holds a lone surrogate") from None


# ---- YAML


def load(text: str, what: str) -> Any:
    """Returns the value of a YAML text. Numbers such as `1e-3` are numbers, as in YAML 1.2 and JSON.

    Args:
        text: of one document.
        what: names the text in errors.

    Raises:
        BadInput: it is not valid YAML, too long, has too many values, or a mapping has a key twice.
    """
    if len(text) > MAX_CHARS:
        raise BadInput(f"{what} has {len(text)} characters, the limit is {MAX_CHARS}")
    loader = _Loader("")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _n_nodes(node, {}) > MAX_NODES:
            raise BadInput(f"{what} stands for more than {MAX_NODES} values: too many aliases, or one within itself")
        return loader.construct_document(node)
    except _UNREADABLE as error:
        raise BadInput(f"{what} is not valid YAML: {str(error)[:300] or type(error).__name__}") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which reads YAML 1.1, with the numbers of YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z"), list("-+.0123456789")
)


def _n_nodes(node: Any, known: dict[int, int]) -> int:
    """Returns the number of nodes from this one downwards, aliases written out; too many for a node within itself.

    Raises:
        BadInput: a mapping has a key twice. What it merges from another (`<<`) may repeat its keys.
    """
    if id(node) not in known:
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated([key.value for key, _ in node.value if key.tag == _STRING], "a mapping of YAML")
        known[id(node)] = MAX_NODES + 1  # until it is counted: an alias that meets it now is inside it
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for item in below for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_n_nodes(part, known) for part in parts)
    return known[id(node)]
