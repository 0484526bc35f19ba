"""Calling code of a user: whatever it raises becomes a `UserCodeFailed` that says where it was raised.

Code of a user is a plug-in package: its import, and all functions and modules that it brings.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from shared.core.errors import BadInput, StrataError, UserCodeFailed
from shared.core.process_settings import settings_kept

_SIGNALS = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""Errors that are no fault of the code, unless it raises them itself."""
_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_ROOT / name}/" for name in ("shared", "strata", "cloud_server", "edge_server", "device_agent"))
_NOT_USERS = (*_OURS, f"{sysconfig.get_path('stdlib')}/", "<")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_TEXT_CHARS = 280
"""So short that the place stays in what records keep of an error."""

Place = tuple[FrameType, int]
"""A frame of a traceback, and the line at which it stood."""


@contextmanager
def user_code(what: str, field: str | None = None, **given: Any) -> Iterator[None]:
    """Runs code of a user, even one that calls `exit`. A `StrataError` that it raises is raised unchanged.

    Settings of the process are as before afterwards.

    Args:
        what: what is called, such as `the loss quantile`.
        field: the field of the spec that names it.
        given: tensors by name that it must not change, since others use them after it.

    Raises:
        UserCodeFailed: the code raised anything else.
        BadInput: it changed one of the tensors in place.
    """
    versions = {name: tensor._version for name, tensor in given.items()}
    try:
        with settings_kept():
            yield
    except StrataError:
        raise
    except BaseException as error:
        if isinstance(error, _SIGNALS) and not _raised_by_user(error):
            raise
        raise UserCodeFailed(f"{what} failed: {described(error)}", field=field) from error
    for name, tensor in given.items():
        if tensor._version != versions[name]:
            raise BadInput(f"{what} changes its {name} in place: work on a clone of them", field=field)


def _raised_by_user(error: BaseException) -> bool:
    """Whether a line of a user's code that says `raise` raised it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    source = linecache.getline(frame.f_code.co_filename, line)
    return is_of_user(str(frame.f_globals.get("__name__"))) and re.search(r"\braise\b", source) is not None


def is_of_user(module: str) -> bool:
    """Whether a module, by name, is code of a user: neither Python's, torch's or ours nor that of another library.

    A module of an installed plug-in package is of the user, too; `__main__` has a file like any other.
    """
    root = module.partition(".")[0]
    if root in {name.strip() for name in os.environ.get("STRATA_PLUGINS", "").split(",")}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or "<none>"
    return not file.startswith(_NOT_USERS) and not any(part in file for part in _INSTALLED)


def described(error: BaseException) -> str:
    """Returns the type and text of an error, and file, line and function where the user's code raised it."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):  # what a coroutine makes of it
        error = error.__cause__
    try:
        text = " ".join(str(error).split())
    except Exception:  # the text of a user's own exception is code of the user, too
        text = ""
    where, source = _origin(error)
    said = f": {text or source:.{_TEXT_CHARS}}" if text or source else ""
    return f"{type(error).__name__}{said}{where}"


def _origin(error: BaseException) -> tuple[str, str]:
    """Where an error was raised, in brackets, and that line of the source; of a syntax error, where it is."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})", ""
    places = list(traceback.walk_tb(error.__traceback__))
    if not places:
        return "", ""
    (found,) = traceback.StackSummary.extract([_of_user(places)])
    return f" ({found.filename}:{found.lineno}, in {found.name})", found.line or ""


def _of_user(places: list[Place]) -> Place:
    """The innermost place in the user's own code; else in the library that was called, else of all.

    A plug-in may be installed: its code is then that of the package which was called first.
    """
    foreign = [place for place in places if not _file(place).startswith(_NOT_USERS)]
    own = [place for place in foreign if not any(part in _file(place) for part in _INSTALLED)]
    called = [place for place in foreign if _package(place) != "torch"]
    return (own or [place for place in called if _package(place) == _package(called[0])] or places)[-1]


def _file(place: Place) -> str:
    return place[0].f_code.co_filename


def _package(place: Place) -> str:
    return str(place[0].f_globals.get("__name__", "")).partition(".")[0]
