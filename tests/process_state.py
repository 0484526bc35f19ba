"""The state of a process, as the kernel tells it."""

from __future__ import annotations

import os
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


def processes_of(folder: Path) -> list[str]:
    """Returns the command lines of other processes that work in a folder, or whose environment names it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            names_it = str(folder).encode() in (entry / "environ").read_bytes()
            works_in_it = (entry / "cwd").readlink().is_relative_to(folder)
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if (names_it or works_in_it) and int(entry.name) != os.getpid() and not has_ended(int(entry.name)):
            found.append(command)
    return found
