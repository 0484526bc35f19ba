"""Memory of processes: the sum of their proportional set sizes, in which shared pages count once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

EVERY_S = 0.02


def pss_bytes(pids: Sequence[int]) -> int:
    """Total PSS of the processes, from `/proc/<pid>/smaps_rollup`; a process that has ended counts as 0."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return 1024 * total


def descendants(pid: int) -> list[int]:
    """Ids of the processes that a process has started, and of those that these have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(path.parent.name))
    return [*found, *(each for child in found for each in descendants(child))]


class Peak:
    """The largest value seen so far."""

    n_bytes = 0


@contextmanager
def monitored(pids: Sequence[int]) -> Iterator[Peak]:
    """Sample the memory every 20 ms. Sampling takes time: do not use it in timed rounds."""
    peak, done = Peak(), threading.Event()

    def look() -> None:
        while True:
            peak.n_bytes = max(peak.n_bytes, pss_bytes(pids))
            if done.wait(EVERY_S):
                return

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        done.set()
        looking.join()


def peak_rss_bytes(pid: int) -> int:
    """The largest resident memory that a process has had, with pages that it shares."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM:"))
