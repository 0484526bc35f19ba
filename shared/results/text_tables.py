"""The tables that the terminal and reports both show, as columns of text: runs side by side, and rounds of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.core.formatting import duration, number, size
from shared.core.scores import Spread
from shared.results.comparison import Comparison
from shared.results.spec_differences import described
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo
from shared.spec.experiment import ExperimentSpec


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
    """One row for each run: how it differs, its value of the metric, what it spent until the target, and its totals."""
    curves, metric = comparison.curves, comparison.metric
    target = metric.text(comparison.target)
    infos, firsts = [curve.info for curve in curves], [curve.reached(comparison.target) for curve in curves]
    differences = [described(curve.differs) for curve in curves]
    spreads = [curve.clients for curve in curves]
    return [
        TextColumn("run", [info.run for info in infos], spare=5, words=True),
        TextColumn("name", [info.name for info in infos], words=True, fold=True),
        *([TextColumn("differs in", differences, words=True, fold=True)] if any(differences) else []),
        TextColumn("status", [status_words(info) for info in infos], spare=4, words=True, fold=True),
        TextColumn(metric.label, [metric.text(curve.value) for curve in curves]),
        *([TextColumn("clients", [spread_text(each, metric) for each in spreads], spare=2)] if any(spreads) else []),
        *evenness_columns(spreads, metric),
        TextColumn(f"rounds to {target}", [str(first.round_no) if first else "-" for first in firsts]),
        TextColumn(f"simulated to {target}", [duration(first.simulated_s) if first else "-" for first in firsts]),
        TextColumn(f"up to {target}", [size(first.bytes_up) if first else "-" for first in firsts]),
        TextColumn("rounds", [f"{info.rounds}/{info.num_rounds}" for info in infos], spare=2),
        TextColumn("simulated", [duration(info.simulated_s) for info in infos], spare=3),
        TextColumn("up", [size(info.bytes_up) for info in infos], spare=1),
        TextColumn("down", [size(info.bytes_down) for info in infos], spare=6),
    ]


def evenness_columns(spreads: Sequence[Spread | None], metric: MetricInfo) -> list[TextColumn]:
    """How even clients are: the mean of the worst tenth and the variance; none in records of earlier versions."""
    if not any(spread and spread.worst_decile is not None for spread in spreads):
        return []
    worst = [metric.text(spread.worst_decile if spread else None) for spread in spreads]
    return [
        TextColumn("worst decile", worst, spare=7),
        TextColumn("variance", [variance_text(spread) for spread in spreads], spare=7),
    ]


def round_columns(rounds: Sequence[RoundInfo], metrics: Sequence[MetricInfo] = (ACCURACY,)) -> list[TextColumn]:
    """One row for each round; energy and attempts only where a round used energy or was repeated.

    Args:
        rounds: of one run.
        metrics: of that run, the headline first, whose spread over clients is shown.
    """
    on_global = [(row.evaluation or {}).get("global") for row in rounds]
    spreads = [row.clients.get("own") or row.clients.get("received") for row in rounds]
    head, *further = metrics
    earlier = [row.client_accuracy if head.label == ACCURACY.label else None for row in rounds]  # without spreads
    means = [spread.mean if spread else mean for spread, mean in zip(spreads, earlier, strict=True)]
    validation = [head.text(row.on_validation(head)) for row in rounds]
    energy = [f"{row.energy_j:.3g} J" if row.energy_j else "-" for row in rounds]
    collected = [size(row.collected_bytes) for row in rounds]
    telemetry = [size(row.telemetry_bytes) for row in rounds]
    return [
        TextColumn("round", [str(row.round_no) for row in rounds]),
        TextColumn("phase", [row.phase if row.kind == "train" else row.kind for row in rounds], spare=1, words=True),
        TextColumn("used", [f"{row.n_used}/{row.n_visits}" for row in rounds]),
        TextColumn(head.label, [head.text(row.on_global(head)) for row in rounds]),
        *(TextColumn(each.label, [each.text(row.on_global(each)) for row in rounds], spare=2) for each in further),
        TextColumn("loss", [number(found.loss if found else None) for found in on_global], spare=2),
        *([TextColumn("validation", validation, spare=1)] if set(validation) - {"-"} else []),
        TextColumn("clients", [head.text(mean) for mean in means], spare=3),
        TextColumn("min", [head.text(spread.min if spread else None) for spread in spreads], spare=7),
        TextColumn("max", [head.text(spread.max if spread else None) for spread in spreads], spare=7),
        *evenness_columns(spreads, head),
        TextColumn("train loss", [number(row.train_loss) for row in rounds], spare=6),
        TextColumn("up", [size(row.bytes_up) for row in rounds]),
        TextColumn("down", [size(row.bytes_down) for row in rounds], spare=4),
        TextColumn("simulated", [duration(row.simulated_s) for row in rounds]),
        *([TextColumn("energy", energy, spare=8)] if any(row.energy_j for row in rounds) else []),
        *([TextColumn("collected", collected, spare=8)] if any(row.collected_bytes for row in rounds) else []),
        *([TextColumn("telemetry", telemetry, spare=8)] if any(row.telemetry_bytes for row in rounds) else []),
        TextColumn("wall", [duration(row.wall_s) for row in rounds], spare=5),
        *([TextColumn("attempts", _attempts(rounds), spare=8)] if any(row.attempts > 1 for row in rounds) else []),
        TextColumn("lost", [str(row.n_lost) for row in rounds]),
    ]


def _attempts(rounds: Sequence[RoundInfo]) -> list[str]:
    return [str(row.attempts) for row in rounds]


def _room(spec: ExperimentSpec) -> str:
    """For how many devices a run has room, if for more than it began with."""
    return f" (room for {spec.max_devices})" if spec.max_devices not in (None, spec.num_devices) else ""


def run_figures(info: RunInfo) -> list[tuple[str, str]]:
    """The run's setting and results, as names and values."""
    spec, (head, *further) = info.spec, info.metrics
    return [
        ("algorithm", str(spec.algorithm)),
        ("data, model", f"{spec.data.name}, {spec.model}"),
        ("devices, edges", f"{spec.num_devices or 'any'}{_room(spec)}, {spec.num_edges or 'any'}"),
        ("rounds", f"{info.rounds} of {info.num_rounds}"),
        (head.label, f"{head.text(info.score)}{_within(info, head)} ({info.accuracy_of})"),
        *((each.label, f"{each.text(info.value(each))}{_within(info, each)}") for each in further),
        ("loss", number(info.loss)),
        *([("best model", str(info.best))] if info.best else []),
        *((f"clients, {name}", _spread_of(spread, head)) for name, spread in sorted(info.clients.items())),
        *(
            (f"clients, {name}, {each.label}", _spread_of(spread, each))
            for each in further
            for name, spread in sorted(info.spreads(each).items())
        ),
        ("bytes", f"{size(info.bytes_up)} up, {size(info.bytes_down)} down"),
        ("time", f"{duration(info.wall_s)} wall, {duration(info.simulated_s)} simulated"),
    ]


def _within(info: RunInfo, metric: MetricInfo) -> str:
    """The bound of the error of a metric's value on the global test set, if it is not exact."""
    final = info.final.get("global")
    error = final.errors.get(metric.label) if final and final.value(metric) == info.value(metric) else None
    return "" if error is None else f", exact to {error:.2g}"


def spread_text(spread: Spread | None, metric: MetricInfo) -> str:
    """The mean over clients, with minimum and maximum."""
    return f"{metric.text(spread.mean)} ({metric.text(spread.min)} to {metric.text(spread.max)})" if spread else "-"


def variance_text(spread: Spread | None) -> str:
    """The variance over clients, with three digits."""
    return "-" if spread is None or spread.variance is None else f"{spread.variance:.3g}"


def _spread_of(spread: Spread, metric: MetricInfo) -> str:
    ends = f"mean of {spread.n}, {metric.text(spread.min)} to {metric.text(spread.max)}"
    if spread.worst_decile is not None:
        ends += f"; worst decile {metric.text(spread.worst_decile)}, variance {variance_text(spread)}"
    return f"{metric.text(spread.mean)} ({ends})"


def status_words(info: RunInfo) -> str:
    """A run's status with its reason."""
    return f"{info.status} ({info.reason})" if info.reason else info.status
