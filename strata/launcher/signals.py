"""Signals of a command that has something to clean up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: `KeyboardInterrupt`, so that it cleans up."""
    with _handled(_interrupt):
        yield


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Keep ending signals waiting until the context is left, so that a second Ctrl-C leaves nothing behind."""
    arrived: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    with _handled(note):
        yield
    if arrived:
        signal.raise_signal(arrived[0])


@contextlib.contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """Put a handler in; only the main thread may, in others nothing changes and no signal arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
