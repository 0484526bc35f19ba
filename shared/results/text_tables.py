"""The tables that the terminal and reports both show, as columns of text: runs side by side, and rounds of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.core.formatting import duration, number, percent, size
from shared.core.scores import Spread
from shared.results.comparison import Comparison
from shared.results.spec_differences import described
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo


@dataclass(frozen=True)
class TextColumn:
    """One column of a table.

    Attributes:
        name: its heading.
        cells: one for each row.
        spare: what a narrow terminal leaves out first has the highest number; 0 is never left out.
        words: whether cells hold words, aligned left, or figures, aligned right.
        fold: whether a cell may take several lines.
    """

    name: str
    cells: Sequence[str]
    spare: int = 0
    words: bool = False
    fold: bool = False


def comparison_columns(comparison: Comparison) -> list[TextColumn]:
    """One row for each run: how it differs, its accuracy, what it spent until the target, and its totals."""
    curves, target = comparison.curves, percent(comparison.target)
    infos, firsts = [curve.info for curve in curves], [curve.reached(comparison.target) for curve in curves]
    differences = [described(curve.differs) for curve in curves]
    clients = [spread_text(curve.clients) for curve in curves]
    return [
        TextColumn("run", [info.run for info in infos], spare=5, words=True),
        TextColumn("name", [info.name for info in infos], words=True, fold=True),
        *([TextColumn("differs in", differences, words=True, fold=True)] if any(differences) else []),
        TextColumn("status", [status_words(info) for info in infos], spare=4, words=True, fold=True),
        TextColumn("accuracy", [percent(curve.accuracy) for curve in curves]),
        *([TextColumn("clients", clients, spare=2)] if any(curve.clients for curve in curves) else []),
        TextColumn(f"rounds to {target}", [str(first.round_no) if first else "-" for first in firsts]),
        TextColumn(f"simulated to {target}", [duration(first.simulated_s) if first else "-" for first in firsts]),
        TextColumn(f"up to {target}", [size(first.bytes_up) if first else "-" for first in firsts]),
        TextColumn("rounds", [f"{info.rounds}/{info.num_rounds}" for info in infos], spare=2),
        TextColumn("simulated", [duration(info.simulated_s) for info in infos], spare=3),
        TextColumn("up", [size(info.bytes_up) for info in infos], spare=1),
        TextColumn("down", [size(info.bytes_down) for info in infos], spare=6),
    ]


def round_columns(rounds: Sequence[RoundInfo]) -> list[TextColumn]:
    """One row for each round; energy and attempts only where a round used energy or was repeated."""
    spreads = [row.clients.get("own") or row.clients.get("received") for row in rounds]
    means = [spread.mean if spread else row.client_accuracy for row, spread in zip(rounds, spreads, strict=True)]
    energy = [f"{row.energy_j:.3g} J" if row.energy_j else "-" for row in rounds]
    return [
        TextColumn("round", [str(row.round_no) for row in rounds]),
        TextColumn("phase", [row.phase if row.kind == "train" else row.kind for row in rounds], spare=1, words=True),
        TextColumn("used", [f"{row.n_used}/{row.n_visits}" for row in rounds]),
        TextColumn("accuracy", [percent(row.accuracy) for row in rounds]),
        TextColumn("loss", [number(row.loss) for row in rounds], spare=2),
        TextColumn("clients", [percent(mean) for mean in means], spare=3),
        TextColumn("min", [percent(spread.min if spread else None) for spread in spreads], spare=7),
        TextColumn("max", [percent(spread.max if spread else None) for spread in spreads], spare=7),
        TextColumn("train loss", [number(row.train_loss) for row in rounds], spare=6),
        TextColumn("up", [size(row.bytes_up) for row in rounds]),
        TextColumn("down", [size(row.bytes_down) for row in rounds], spare=4),
        TextColumn("simulated", [duration(row.simulated_s) for row in rounds]),
        *([TextColumn("energy", energy, spare=8)] if any(row.energy_j for row in rounds) else []),
        TextColumn("wall", [duration(row.wall_s) for row in rounds], spare=5),
        *([TextColumn("attempts", _attempts(rounds), spare=8)] if any(row.attempts > 1 for row in rounds) else []),
        TextColumn("lost", [str(len(row.failures)) for row in rounds]),
    ]


def _attempts(rounds: Sequence[RoundInfo]) -> list[str]:
    return [str(row.attempts) for row in rounds]


def run_figures(info: RunInfo) -> list[tuple[str, str]]:
    """The run's setting and results, as names and values."""
    spec = info.spec
    return [
        ("algorithm", str(spec.algorithm)),
        ("data, model", f"{spec.data.name}, {spec.model}"),
        ("devices, edges", f"{spec.num_devices or 'any'}, {spec.num_edges or 'any'}"),
        ("rounds", f"{info.rounds} of {info.num_rounds}"),
        ("accuracy", f"{percent(info.accuracy)} ({info.accuracy_of})"),
        ("loss", number(info.loss)),
        *((f"clients, {name}", _spread_of(spread)) for name, spread in sorted(info.clients.items())),
        ("bytes", f"{size(info.bytes_up)} up, {size(info.bytes_down)} down"),
        ("time", f"{duration(info.wall_s)} wall, {duration(info.simulated_s)} simulated"),
    ]


def spread_text(spread: Spread | None) -> str:
    """The mean over clients, with minimum and maximum."""
    return f"{percent(spread.mean)} ({percent(spread.min)} to {percent(spread.max)})" if spread else "-"


def _spread_of(spread: Spread) -> str:
    return f"{percent(spread.mean)} (mean of {spread.n}, {percent(spread.min)} to {percent(spread.max)})"


def status_words(info: RunInfo) -> str:
    """A run's status with its reason."""
    return f"{info.status} ({info.reason})" if info.reason else info.status
