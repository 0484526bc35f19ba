"""When a run ends before its last round, and what is said of its end."""

from __future__ import annotations

from cloud_server.runs.repository import RunRepository
from shared.federation.experiment import Experiment
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
    if spent is not None or info.stop.accuracy is None:
        return spent
    last = (await _accuracies(repository, info, experiment))[-info.stop.times :]
    if len(last) < info.stop.times or min(last) < info.stop.accuracy:
        return None
    return f"accuracy {last[-1]:.4g} reached stop.accuracy {info.stop.accuracy:g}" + (
        f" in {info.stop.times} evaluations in a row" if info.stop.times > 1 else ""
    )


def _spent(stop: Stop, info: RunInfo) -> str | None:
    """The budget that is spent."""
    totals = {"simulated_s": info.simulated_s, "bytes": info.bytes_up + info.bytes_down, "joules": info.energy_j}
    for name, total in totals.items():
        limit = getattr(stop, name)
        if limit is not None and total >= limit:
            return f"{total:.6g} spent of stop.{name} {limit:g}"
    return None


async def _accuracies(repository: RunRepository, info: RunInfo, experiment: Experiment) -> list[float]:
    """The headline accuracies of the rounds that were evaluated, in order."""
    if experiment.algorithm.headline == "global model":
        found = [scores.get("global") for _, scores in sorted((await repository.evaluations(info.run)).items())]
        return [score.accuracy for score in found if score is not None and score.accuracy is not None]
    rows = await repository.rounds(info.run)
    return [row.client_accuracy for row in rows if row.client_accuracy is not None]
