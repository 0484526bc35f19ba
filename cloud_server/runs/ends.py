"""When a run ends before its last round, and what is said of its end."""

from __future__ import annotations

from cloud_server.runs.repository import RunRepository
from shared.federation.experiment import Experiment
from shared.run_records.metrics import MetricInfo
from shared.run_records.runs import RunInfo
from shared.spec.fields import Stop

NO_UPDATE = "no update was used in any round: the model is the one that the run began with"


async def reached(repository: RunRepository, info: RunInfo, experiment: Experiment) -> str | None:
    """The condition of the run's `stop` that holds after its last round, None if none does.

    Every evaluation that was due must have ended, so that the answer depends on rounds alone.
    """
    if info.stop is None or not info.rounds:
        return None
    spent = _spent(info.stop, info)
    if spent is not None or not info.stop.by_metric:
        return spent
    metric, (name, target) = _metric(info), _target(info.stop)
    last = (await _values(repository, info, experiment, metric))[-info.stop.times :]
    if len(last) < info.stop.times or not metric.reached(metric.worst(last), target):
        return None
    return f"{metric.label} {last[-1]:.4g} reached stop.{name} {target:g}" + (
        f" in {info.stop.times} evaluations in a row" if info.stop.times > 1 else ""
    )


def _metric(info: RunInfo) -> MetricInfo:
    """The metric of the run's `stop`."""
    wanted = info.stop.metric if info.stop else None
    return next((metric for metric in info.metrics if metric.label == wanted), info.headline)


def _target(stop: Stop) -> tuple[str, float]:
    """The field that holds the value to reach, and that value."""
    return ("accuracy", stop.accuracy) if stop.accuracy is not None else ("target", stop.target or 0.0)


def _spent(stop: Stop, info: RunInfo) -> str | None:
    """The budget that is spent."""
    totals = {"simulated_s": info.simulated_s, "bytes": info.bytes_up + info.bytes_down, "joules": info.energy_j}
    for name, total in totals.items():
        limit = getattr(stop, name)
        if limit is not None and total >= limit:
            return f"{total:.6g} spent of stop.{name} {limit:g}"
    return None


async def _values(repository: RunRepository, info: RunInfo, experiment: Experiment, metric: MetricInfo) -> list[float]:
    """The values of a metric in the rounds that were evaluated, in order: of the global model, or the clients' mean."""
    rows = await repository.rounds(info.run)
    if experiment.algorithm.headline == "global model":
        values = [row.on_global(metric) for row in rows]
    else:
        values = [info.over_clients(metric, row) for row in rows]
    return [value for value in values if value is not None]
