"""Installed versions: of StrataFL, of Python and of the packages that compute."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

_DISTRIBUTIONS = ("stratafl", "torch", "numpy", "torchvision")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute; `absent` where one is not installed."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    """Looked up once: it is asked for after every round."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def version() -> str:
    """The installed version of the package."""
    try:
        return package_version("stratafl")
    except PackageNotFoundError:
        return "0+unknown"
