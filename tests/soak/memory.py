"""Resident memory of processes over their lifetimes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WARM_S = 90.0
"""Growth is measured from this age on: by then a process has imported and cached what it keeps."""
MIN_LIFE_S = 300.0
"""Growth over a shorter lifetime is reported and not judged."""
GROWTH = 1.10
PAGE = 4096


@dataclass
class Memory:
    """Samples by process; a restarted process counts as a new one."""

    samples: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)

    def look(self, pids: Mapping[str, int]) -> None:
        """Take a sample of each process."""
        for name, pid in pids.items():
            with suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                if pages:  # 0 pages: the process has just ended
                    self.samples.setdefault((name, pid), []).append((time.monotonic(), pages * PAGE))

    def table(self) -> list[dict[str, Any]]:
        """Returns each process's lifetime, its memory after warm-up and a tenth of the lifetime, and at the end."""
        rows = []
        for (name, _), seen in sorted(self.samples.items()):
            began, life_s = seen[0][0], seen[-1][0] - seen[0][0]
            early = next((n for at, n in seen if at - began >= max(life_s / 10, WARM_S)), seen[-1][1])
            late = seen[-1][1]
            row = {"process": name, "life_s": round(life_s), "early_bytes": early, "late_bytes": late}
            rows.append({**row, "growth": round(late / early, 3), "judged": life_s >= MIN_LIFE_S})
        return rows

    def grown(self) -> list[str]:
        """Returns the processes whose memory grew by more than `GROWTH` allows."""
        return [
            f"{row['process']} grew from {row['early_bytes'] / 1e6:.0f} to {row['late_bytes'] / 1e6:.0f} MB"
            for row in self.table()
            if row["judged"] and row["growth"] > GROWTH
        ]
