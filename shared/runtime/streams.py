"""The standard streams of a process: they may be closed, lose their reader, or take few letters only.

A long run is not lost because of its output. What a stream's encoding lacks is replaced; a stream whose reader has gone
(`| head`, a closed terminal) is silent from then on. An output that fails otherwise, as on a full disk, is silent too,
and the command says so at its end.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


class Unbroken:
    """A text stream whose failures raise nothing; everything else is that of the stream.

    Args:
        stream: the stream; None, as of a process without a terminal, takes everything in silence.
        name: what it is called in `failure`.
    """

    def __init__(self, stream: TextIO | None, name: str = "") -> None:
        self._stream, self._name = stream, name
        self._terminal = self.isatty()
        self.broken = False
        """Whether nobody reads it any more, or it failed otherwise."""
        self.failure: OSError | None = None
        """Why it failed, unless its reader has gone."""

    def write(self, text: str) -> int:
        """Write a text, or drop it if that is not possible."""
        if self._stream is not None and not self.broken:
            try:
                self._write(self._stream, text)
            except (OSError, ValueError) as error:  # a ValueError: it was closed
                self._break(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        if self._stream is not None and not self.broken:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._break(error)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))

    def _break(self, error: OSError | ValueError) -> None:
        self.broken = True
        if isinstance(error, OSError) and not self._has_no_reader(error):
            self.failure = OSError(error.errno, error.strerror, self._name)
        if self._name:  # of this program alone: what is still buffered has to go somewhere at its end
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, cast(TextIO, self._stream).fileno())
                os.close(null)

    def _has_no_reader(self, error: OSError) -> bool:
        return error.errno == errno.EPIPE or (self._terminal and error.errno in (errno.EIO, errno.ENXIO))


def open_standard() -> None:
    """Open the null device for each closed standard stream: a socket that got its number would be written to."""
    for number, (name, mode) in enumerate(_MODES.items()):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
        if getattr(sys, name) is None:
            file = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, file)


@contextmanager
def unbroken() -> Iterator[Unbroken]:
    """Make the standard streams of this program unbroken while the context is open; yields stdout."""
    open_standard()
    before, out, err = (sys.stdout, sys.stderr), Unbroken(sys.stdout, "stdout"), Unbroken(sys.stderr, "stderr")
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def no_reader() -> bool:
    """Whether nobody reads the stdout of this program any more, so that it need not go on to print."""
    return bool(getattr(sys.stdout, "broken", False))
