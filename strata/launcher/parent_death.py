"""Become another program that the kernel kills when its parent ends, however that ends (`kill -9` included).

Run as a file, isolated and without site packages: `python -I -S shim.py PARENT_PID PROGRAM ARGUMENT...`. A
small program of its own is used rather than `preexec_fn`, which runs Python between fork and exec and may hang
where the parent has threads. The signal belongs to the parent's *thread*: start processes from one that lasts.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main(arguments: list[str]) -> None:
    """Ask for the signal, see that the parent still lives, and exec."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the signal was asked for
            sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - the launcher's own command


if __name__ == "__main__":
    main(sys.argv[1:])
