"""What is measured of each run, read from its results folder, and kept in one file for each page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from shared.core.files import write_file
from shared.core.records import Record
from shared.results.folder import read_rounds, read_run
from shared.run_records.rounds import RoundInfo

Values = tuple[float | None, ...]
Further = Callable[[Path, Sequence[RoundInfo]], Mapping[str, Sequence[float | None]]]
"""Reads a page's own series from a results folder: one value for each training round."""
KEPT = Path(__file__).parent / "results"
_COUNTED = (
    "n_used",
    "n_visits",
    "device_bytes_up",
    "device_bytes_down",
    "simulated_s",
    "train_loss",
    "client_accuracy",
)


class Measured(Record):
    """One run of a setting.

    Attributes:
        setting, seed: which.
        fingerprint: of its spec.
        model_sha256: digest of its last model, which every machine of the same kind repeats.
        seconds: wall seconds of the run on the machine that made it.
        series: a value for each training round, None where there is none. `global`, `global_loss` and the other
            evaluations by name; `own` and `received`, means over clients; bytes, counts and simulated seconds.
        final: accuracies of the evaluations at the end, by name.
    """

    setting: str
    seed: int
    fingerprint: str
    model_sha256: str
    seconds: float
    series: dict[str, Values]
    final: dict[str, float]

    def last(self, name: str) -> float | None:
        """The last value of a series."""
        return next((value for value in reversed(self.series.get(name, ())) if value is not None), None)

    def at(self, name: str, round_no: int) -> float | None:
        """The value of a series after a round, or None."""
        values = self.series.get(name, ())
        return values[round_no - 1] if round_no <= len(values) else None

    def total(self, name: str, until: int | None = None) -> float:
        """The sum of a series, over all rounds or the first `until`."""
        return math.fsum(value for value in self.series.get(name, ())[:until] if value is not None)

    def rounds_to(self, name: str, least: float) -> int | None:
        """The first round after which a series is at least so large, or None."""
        found = enumerate(self.series.get(name, ()), start=1)
        return next((round_no for round_no, value in found if value is not None and value >= least), None)


class Trial(Record):
    """How long the rounds of a setting take: wall seconds of one, by a run of a few."""

    setting: str
    fingerprint: str
    seconds_a_round: float


class Kept(Record):
    """What is known of a page's settings, as kept in `results/NAME.json`."""

    runs: tuple[Measured, ...] = ()
    trials: tuple[Trial, ...] = ()

    @classmethod
    def read(cls, name: str) -> Self:
        """What is kept of a page; nothing if there is no file."""
        path = KEPT / f"{name}.json"
        return cls.model_validate_json(path.read_bytes()) if path.exists() else cls()

    def write(self, name: str) -> None:
        """Keep it, a line for each run and trial."""
        lists = [
            f'"{field}": [\n' + ",\n".join(each.model_dump_json() for each in getattr(self, field)) + "\n]"
            for field in type(self).model_fields
        ]
        write_file(KEPT / f"{name}.json", ("{\n" + ",\n".join(lists) + "\n}\n").encode())

    def with_run(self, run: Measured) -> Self:
        """The same with a run, in place of an earlier one of the same setting and seed."""
        others = [each for each in self.runs if (each.setting, each.seed) != (run.setting, run.seed)]
        return self.replace(runs=tuple(sorted([*others, run], key=lambda each: (each.setting, each.seed))))

    def with_trial(self, trial: Trial) -> Self:
        """The same with a trial, in place of an earlier one of the same setting."""
        others = [each for each in self.trials if each.setting != trial.setting]
        return self.replace(trials=tuple(sorted([*others, trial], key=lambda each: each.setting)))


def measure(folder: Path, setting: str, fingerprint: str, further: Further | None = None) -> Measured:
    """What a results folder says of its run; figures with six digits.

    Raises:
        NotFound: the folder holds no results of this version.
    """
    info = read_run(folder)
    rounds = [row for row in read_rounds(folder) if row.kind == "train"]
    series: dict[str, list[float | None]] = {name: [getattr(row, name) for row in rounds] for name in _COUNTED}
    for name in sorted({name for row in rounds for name in row.evaluation or {}}):
        found = [(row.evaluation or {}).get(name) for row in rounds]
        series[name] = [each.accuracy if each else None for each in found]
        series[f"{name}_loss"] = [each.loss if each else None for each in found]
    for name in sorted({name for row in rounds for name in row.clients}):
        series[name] = [row.clients[name].mean if name in row.clients else None for row in rounds]
    if further:
        series |= {name: list(values) for name, values in further(folder, rounds).items()}
    return Measured(
        setting=setting,
        seed=info.spec.seed,
        fingerprint=fingerprint,
        model_sha256=info.model_sha256 or "",
        seconds=round(info.wall_s, 1),
        series={
            name: tuple(map(_rounded, values)) for name, values in series.items() if any(v is not None for v in values)
        },
        final={name: each.accuracy for name, each in sorted(info.final.items()) if each.accuracy is not None},
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
