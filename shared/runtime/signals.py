"""Which signals a process heeds: what was ignored when it began, as SIGHUP by `nohup`, stays ignored.

A shell without job control starts background jobs with SIGINT ignored. Whoever installs a handler for such a signal
ends the process by a signal that its user wanted it to survive.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable


def heeded(numbers: Iterable[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Returns those of these signals that are not ignored; only for them may a handler be installed."""
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
