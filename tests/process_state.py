"""The state of a process, as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

from tests.waits import until


def state_of(pid: int) -> str:
    """Returns the letter of a process's state (T = stopped, Z = ended and not reaped), or "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def has_ended(pid: int) -> bool:
    """Whether a process has ended; nobody may have read its status yet."""
    return state_of(pid) in ("", "Z")


def wait_until_gone(*pids: int) -> None:
    """Wait until these processes have ended."""
    until(f"the end of {pids}", lambda: all(map(has_ended, pids)), every_s=0.02)
