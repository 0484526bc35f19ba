"""Resident memory of processes over their lives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WARM_S = 90.0
"""A process is not measured before: what it imports and keeps for good has come by then."""
MIN_LIFE_S = 300.0
"""A shorter life is reported and not judged."""
GROWTH = 1.10
PAGE = 4096


@dataclass
class Memory:
    """Samples by process: a process that was started again is another one."""

    samples: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)

    def look(self, pids: Mapping[str, int]) -> None:
        """Take a sample of each process."""
        for name, pid in pids.items():
            with suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                if pages:  # none: it has just ended
                    self.samples.setdefault((name, pid), []).append((time.monotonic(), pages * PAGE))

    def table(self) -> list[dict[str, Any]]:
        """For each process its life, its memory once a tenth of it is over and it is warm, and at the end."""
        rows = []
        for (name, _), seen in sorted(self.samples.items()):
            began, life_s = seen[0][0], seen[-1][0] - seen[0][0]
            early = next((n for at, n in seen if at - began >= max(life_s / 10, WARM_S)), seen[-1][1])
            late = seen[-1][1]
            row = {"process": name, "life_s": round(life_s), "early_bytes": early, "late_bytes": late}
            rows.append({**row, "growth": round(late / early, 3), "judged": life_s >= MIN_LIFE_S})
        return rows

    def grown(self) -> list[str]:
        """Processes that grew beyond what is allowed."""
        return [
            f"{row['process']} grew from {row['early_bytes'] / 1e6:.0f} to {row['late_bytes'] / 1e6:.0f} MB"
            for row in self.table()
            if row["judged"] and row["growth"] > GROWTH
        ]
