"""When a run ends before its last round, and what is said of its end."""

from __future__ import annotations

from cloud_server.runs.best import Measure, measure_of, patience_over
from cloud_server.runs.repository import RunRepository
from shared.federation.experiment import Experiment
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.spec.ends import Stop

Values = list[tuple[int, float]]
"""By round, in order."""
NO_UPDATE = "no update was used in any round: the model is the one that the run began with"


def with_lateness(info: RunInfo, detail: RoundDetail) -> RunInfo:
    """The document of a run, with a note if all updates of its first round came too late, while that can be mended."""
    deadline_s = info.spec.round_deadline_s
    late = [visit for visit in detail.seats if visit.outcome == "refused" and visit.reason == "late"]
    if info.rounds > 1 or deadline_s is None or not late or detail.n_used:
        return info
    what = f"round {detail.round_no}: no update was used, {len(late)} came after round_deadline_s {deadline_s:g}"
    note = f"{what}: a later deadline, partial_work, or late: next_round would use them"
    return info.replace(notes=(*info.notes, note))


async def reached(repository: RunRepository, info: RunInfo, experiment: Experiment) -> str | None:
    """The condition of the run's `stop` that holds after its last round, None if none does.

    Every evaluation that was due must have ended, so that the answer depends on rounds alone.
    """
    if info.stop is None or not info.rounds:
        return None
    spent = _spent(info.stop, info)
    if spent is not None or not info.stop.by_metric:
        return spent
    measure = measure_of(info.stop, info.spec, info.metrics)
    values = await _values(repository, info, experiment, measure)
    return _at_target(info.stop, values, measure) or patience_over(values, info, measure)


def _at_target(stop: Stop, values: Values, measure: Measure) -> str | None:
    """What is said of a run whose metric has reached its target, None if it has not."""
    metric, (name, target) = measure.metric, _target(stop)
    last = [value for _, value in values[-stop.times :]]
    if not stop.has_target or len(last) < stop.times or not metric.reached(metric.worst(last), target):
        return None
    where = " on the validation part" if measure.on == "validation" else ""
    return f"{metric.label}{where} {last[-1]:.4g} reached stop.{name} {target:g}" + (
        f" in {stop.times} evaluations in a row" if stop.times > 1 else ""
    )


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


async def _values(repository: RunRepository, info: RunInfo, experiment: Experiment, measure: Measure) -> Values:
    """The values in the rounds that were evaluated, by round in order: of the global model, or the clients' mean."""
    of_global = experiment.algorithm.headline == "global model"
    rows = await repository.rounds(info.run)
    values = [
        (row.round_no, measure.of(row.evaluation) if of_global else info.over_clients(measure.metric, row))
        for row in rows
    ]
    return [(round_no, value) for round_no, value in values if value is not None]
