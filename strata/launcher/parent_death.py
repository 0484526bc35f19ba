"""A small program that becomes another one, which the kernel kills when its parent ends (even by `kill -9`).

It runs as a file, isolated and without site packages: `python -I -S parent_death.py PARENT_PID PROGRAM ARGUMENT...`.
`preexec_fn` would run Python between fork and exec, which may hang when the parent has threads. The signal is tied
to the parent's *thread*: start processes from a thread that outlives them.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main(arguments: list[str]) -> None:
    """Request the signal, check that the parent still lives, and exec the program."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the signal was requested
            sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - the launcher's own command


if __name__ == "__main__":
    main(sys.argv[1:])
