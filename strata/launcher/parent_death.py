"""A small program that becomes another one, which the kernel kills when its parent ends (even by `kill -9`).

It runs as a file, isolated and without site packages: `python -I -S parent_death.py PARENT_PID PROGRAM ARGUMENT...`.
`preexec_fn` would run Python between fork and exec, which may hang when the parent has threads. The signal is tied
to the parent's *thread*: start processes from a thread that outlives them.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SIGKILL = 9
_NAME_BYTES = 15


def main(arguments: list[str]) -> None:
    """Ask to end with the parent, and become the program."""
    parent, program = int(arguments[0]), arguments[1:]
    end_with_parent(parent)
    os.execv(program[0], program)  # noqa: S606 - the launcher's own command


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, and check that the parent still lives."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != parent:  # it ended before the signal was requested
            sys.exit(1)


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show for this process, cut to 15 bytes."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES])


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
