"""The results of a soak, as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Summary:
    """The figures of a soak.

    Attributes:
        problems: the faults of the product, in words; a soak without problems has passed.
        notes: what could not be tested on this machine, in words.
    """

    seed: int
    minutes: float
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    resumed: list[str] = field(default_factory=list)
    rounds: int = 0
    contributions: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    retried_rounds: int = 0
    seats_moved: int = 0
    fresh_states: int = 0
    node_events: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    equal: int = 0
    leftovers: dict[str, list[str]] = field(default_factory=dict)
    memory: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the summary as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self), indent=2) + "\n", encoding="utf-8")

    def table(self) -> str:
        """Returns the summary as a text table."""
        rows = [
            ("faults", f"{self.faults.total()}: {_counts(self.faults)}"),
            ("faults skipped, target already down", str(self.skipped.total())),
            ("runs", _counts(self.runs)),
            ("failed runs that were resumed", "; ".join(self.resumed) or "0"),
            ("rounds, contributions", f"{self.rounds}, {self.contributions}"),
            ("lost contributions", f"{self.lost.total()}: {_counts(self.lost)}"),
            ("retried rounds", str(self.retried_rounds)),
            ("seats moved, fresh states", f"{self.seats_moved}, {self.fresh_states}"),
            ("nodes seen", _counts(self.node_events)),
            ("runs compared, equal bit for bit", f"{self.compared}, {self.equal}"),
            *((f"left over {when}", "; ".join(what) or "nothing") for when, what in self.leftovers.items()),
            *((f"memory of {row['process']}", _memory(row)) for row in self.memory if row["life_s"] >= 60),
            *(("note", note) for note in self.notes),
            ("problems", "\n".join(["", *self.problems]) if self.problems else "none"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "0"


def _memory(row: dict[str, Any]) -> str:
    judged = "" if row["judged"] else ", too short a lifetime to be judged"
    early, late = row["early_bytes"] / 1e6, row["late_bytes"] / 1e6
    return f"{early:.0f} -> {late:.0f} MB ({row['growth']:.3f}) in {row['life_s']} s{judged}"
