"""The final scores of a run: its last evaluations, and the one that the algorithm reports as its accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_server.runs.best import stored_best
from cloud_server.runs.evaluation import over_clients
from cloud_server.runs.run_state import CloudServices, RunState
from cloud_server.runs.starts import BEST
from shared.core.scores import Spreads
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.run_records.rounds import Evaluation, RoundDetail, RunScores
from shared.run_records.runs import BestModel


class FinalScores(RunScores):
    """The fields of `RunInfo` that a complete run has."""

    final: dict[str, Evaluation]
    clients: Spreads
    client_metrics: Mapping[str, Spreads]
    accuracy_of: str
    models: tuple[str, ...]
    best: BestModel | None


def with_means(detail: RoundDetail, experiment: Experiment) -> RoundDetail:
    """The evaluation by every seat, with the means over clients as its evaluation."""
    means = over_clients(detail, experiment.population.held_out, experiment.scoring.infos[0])
    return detail.model_copy(update={"evaluation": means})


async def final_scores(
    services: CloudServices, run_id: str, state: RunState, ctx: Context, detail: RoundDetail
) -> FinalScores:
    """The final scores of a run.

    Args:
        services: of the cloud.
        run_id: the run.
        state: after the last round.
        ctx: of that round.
        detail: the evaluation by every seat that followed it, `with_means`.
    """
    experiment = state.experiment
    final = {**await _evaluation(services, run_id, state, ctx), **(detail.evaluation or {})}
    best = await stored_best(services.repository.store, run_id)
    key = "global" if experiment.algorithm.headline == "global model" else "clients_own"
    head = final.get(key) or final.get("clients_received")
    return {
        "final": {name: score.replace(by_class=None) for name, score in final.items()},  # each request sends a run
        "clients": detail.clients,
        "client_metrics": detail.client_metrics,
        **(head or Evaluation(n=0)).of_run,
        "accuracy_of": experiment.algorithm.headline,
        "models": (*experiment.algorithm.cloud.models(ctx, state.checkpoint.state), *([BEST] if best else [])),
        "best": best.model if best else None,
    }


async def _evaluation(services: CloudServices, run_id: str, state: RunState, ctx: Context) -> dict[str, Evaluation]:
    """The evaluation of the last round; run now if none was due, because more rounds had been requested then."""
    round_no = state.checkpoint.round_no
    found = await services.repository.evaluations(run_id)
    if round_no not in found:
        await services.evaluator.submit(run_id, state.experiment, ctx, state.checkpoint, final=True)
        await services.evaluator.finish(run_id)
        found = await services.repository.evaluations(run_id)
    return found.get(round_no, {})
