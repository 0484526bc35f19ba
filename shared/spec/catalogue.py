"""The experiments that come with StrataFL: their specs by name, what each shows, and the CPU time that was measured.

Their files are those of `experiments/` in the repository; an installed package has them in `shared/spec/experiments`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shared.core import parsing
from shared.core.records import Record
from shared.spec.run import RunSpec

FOLDER = Path(__file__).with_name("experiments")
TIMES = FOLDER / "times.json"
_END = re.compile(r"(?<=[a-z0-9)]\.) (?=[A-Z])")
_UNITS = ((120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h"))


class CpuTime(Record):
    """CPU seconds of all processes of one run together.

    Attributes:
        seconds: of the measured run.
        rounds: how many rounds it trained.
        start: of a run of one round of the quickstart, where not all rounds were measured.
    """

    seconds: float
    rounds: int
    start: float = 0.0

    def seconds_of(self, n_rounds: int) -> float:
        """Returns the seconds of so many rounds, estimated if others were measured."""
        return self.start + (self.seconds - self.start) * n_rounds / self.rounds

    def told_of(self, n_rounds: int) -> str:
        """Returns them in words, which say how many rounds they were estimated from."""
        seconds = self.seconds_of(n_rounds)
        words = next(f"{seconds / unit:.0f} {name}" for below, unit, name in _UNITS if seconds < below)
        return words if n_rounds == self.rounds else f"{words}, estimated from {self.rounds} rounds"


class Times(Record):
    """What `make experiment-times` measured, by name of the experiment, and on which machine."""

    machine: str
    cpu_s: dict[str, CpuTime]


@dataclass(frozen=True)
class Entry:
    """One experiment: its name and the text of its spec."""

    name: str
    text: str

    @property
    def about(self) -> str:
        """What it shows: its first comment, on one line, without the commands below it."""
        return " ".join(row.removeprefix("#").strip() for row in self._comment() if not row.startswith("#   "))

    @property
    def summary(self) -> str:
        """The first sentence of `about`."""
        return _END.split(self.about, maxsplit=1)[0]

    @property
    def commands(self) -> list[str]:
        """The commands in its first comment."""
        return [row.removeprefix("#").strip() for row in self._comment() if row.startswith("#   ")]

    @cached_property
    def spec(self) -> RunSpec:
        """Its spec, whose names are not checked."""
        return RunSpec.model_validate(parsing.load(self.text, self.name))

    def cost(self, times: Times) -> str:
        """Returns its CPU time in words."""
        found = times.cpu_s.get(self.name)
        return found.told_of(self.spec.num_rounds) if found else "not measured"

    def listed(self, times: Times) -> dict[str, Any]:
        """Returns its name, what it shows, its size and cost as JSON values."""
        spec, found = self.spec, times.cpu_s.get(self.name)
        return {
            "name": self.name,
            "about": self.about,
            "algorithm": spec.algorithm.name,
            "data": spec.data.name,
            "model": spec.model.name,
            "devices": spec.num_devices,
            "rounds": spec.num_rounds,
            "cpu_s": found and round(found.seconds_of(spec.num_rounds), 1),
        }

    def _comment(self) -> Iterator[str]:
        for row in self.text.splitlines():
            if not row.startswith("#"):
                return
            yield row


def files() -> dict[str, Path]:
    """Returns the file of each experiment by its name, sorted."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def entries() -> list[Entry]:
    """Returns all experiments, sorted by name."""
    return [Entry(name, path.read_text(encoding="utf-8")) for name, path in files().items()]


def measured() -> Times:
    """Returns the CPU times that were measured."""
    return Times.model_validate_json(TIMES.read_text(encoding="utf-8"))
