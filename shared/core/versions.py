"""Versions of StrataFL, of Python and of the packages that compute."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata

VERSION = "0.2.0"
"""The version of StrataFL; pyproject.toml reads it here."""
_DISTRIBUTIONS = ("torch", "numpy", "torchvision")


def versions() -> dict[str, str]:
    """Returns the versions of Python, StrataFL and the packages that compute; `absent` if one is not installed."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    """Looks the versions up once: each round records them."""
    found = {"python": platform.python_version(), "stratafl": VERSION}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns, by name, the pairs of values that differ, as of versions; `unknown` where one side lacks the name."""
    names = sorted(first.keys() | second.keys())
    pairs = {name: (first.get(name, "unknown"), second.get(name, "unknown")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
