"""Signal handling for commands that must clean up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from shared.runtime.signals import heeded

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command arrived; it is treated as Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def status_of(error: KeyboardInterrupt) -> int:
    """The exit status of a command that a signal ended, 128 + its number: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `KeyboardInterrupt`, as Ctrl-C does, so that the command cleans up.

    One that is ignored, as SIGHUP under `nohup`, stays ignored.

    Raises:
        SystemExit: such an interrupt was left to the end of the context; its status is that of `status_of`.
    """
    with _handled(_interrupt):
        try:
            yield
        except KeyboardInterrupt as interrupt:
            raise SystemExit(status_of(interrupt)) from None


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the context is left: a second Ctrl-C cannot interrupt the cleanup."""
    arrived: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    with _handled(note):
        yield
    if arrived:
        signal.raise_signal(arrived[0])


@contextlib.contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """Install a handler for the context. In threads other than the main one this does nothing: they get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in heeded(_ENDING)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)
