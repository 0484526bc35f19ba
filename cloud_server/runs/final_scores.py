"""The figures of a run that is complete: its last evaluations, the headline among them."""

from __future__ import annotations

from typing import Any

from cloud_server.runs.evaluation import over_clients
from cloud_server.runs.state import CloudServices, RunState
from shared.federation.context import Context
from shared.run_records.rounds import Evaluation, RoundDetail


async def final_figures(
    tools: CloudServices, run_id: str, at: RunState, ctx: Context, detail: RoundDetail
) -> dict[str, Any]:
    """Fields of the run's document.

    Args:
        tools: of the cloud.
        run_id: the run.
        at: where it stands after its last round.
        ctx: of that round.
        detail: the evaluation by every seat that followed.
    """
    experiment = at.experiment
    held_out = {seat.number for seat in experiment.population.seats if seat.role == "held_out"}
    final = {**await _scores(tools, run_id, at, ctx), **over_clients(detail, held_out)}
    key = "global" if experiment.algorithm.headline == "global model" else "clients_own"
    head = final.get(key) or final.get("clients_received")
    return {
        "final": final,
        "clients": detail.clients,
        "accuracy": head.accuracy if head else None,
        "loss": head.loss if head else None,
        "accuracy_of": experiment.algorithm.headline,
        "models": tuple(experiment.algorithm.cloud.models(ctx, at.checkpoint.state)),
    }


async def _scores(tools: CloudServices, run_id: str, at: RunState, ctx: Context) -> dict[str, Evaluation]:
    """The evaluation of the last round; made now if it was not due, since more rounds had been asked for."""
    round_no = at.checkpoint.round_no
    found = await tools.repository.evaluations(run_id)
    if round_no not in found:
        await tools.evaluator.submit(run_id, at.experiment, ctx, at.checkpoint, final=True)
        await tools.evaluator.finish()
        found = await tools.repository.evaluations(run_id)
    return found.get(round_no, {})
