"""The evaluation of a round: the seats that only evaluate, and an edge that is a client itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.visit_requests import reachable, visit_requests
from edge_server.rounds.wave import Dispatch
from shared.core.number_sets import NumberSet
from shared.core.scores import Score
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import test_by_owner
from shared.federation.messages import RoundOrder, Task, WaveId
from shared.federation.placements import EdgePlacement
from shared.federation.population import Population
from shared.federation.visit_estimates import evaluation_due
from shared.federation.visits.trainer import trainer_for


class EdgeScores(NamedTuple):
    """The scores of an edge that is a client.

    Attributes:
        received: of the model that it received, on its tests.
        own: of its own model, on its tests.
        own_on: of its own model on the spec's further test sets, by name.
    """

    received: Score | None
    own: Score | None
    own_on: dict[str, Score]


NO_SCORES = EdgeScores(None, None, {})


def held_out_tasks(ctx: Context, population: Population, seats: NumberSet, n_others: int) -> dict[int, Task]:
    """Tasks for the held-out seats: they evaluate in the first wave of a round whose evaluation is due.

    Where only a sample of the clients is tested, they are at most as many as the other seats of the wave (`n_others`).
    """
    if ctx.edge_round or ctx.wave or not evaluation_due(ctx):
        return {}
    tested = population.held_out & population.test_clients & seats
    most = None if population.tests_all else n_others
    return {number: _task(ctx) for number in islice(tested, most)}


def evaluation_dispatch(
    experiment: Experiment,
    order: RoundOrder[Any],
    ctx: Context,
    state: Any,
    clock: EdgeClock,
    placement: EdgePlacement,
    seats: NumberSet,
) -> Dispatch:
    """The wave in which these seats evaluate; empty with `client: edge`, where the edge evaluates for its devices."""
    tasks = {number: _task(ctx) for number in seats} if experiment.spec.client == "device" else {}
    requests = visit_requests(experiment, ctx, state, clock, order.bases, tasks)
    sent, failures = reachable(experiment, placement, order.edge, requests)
    wave_id = WaveId(run_id=order.run_id, round_no=order.round_no)
    return Dispatch(wave_id, tasks, sent, at_s=order.clock_s, failures=failures)


def _task(ctx: Context) -> Task:
    return Task(kind="evaluate", batch_size=ctx.spec.batch_size)


def edge_evaluates(ctx: Context, order: RoundOrder[Any]) -> bool:
    """Whether edges are the clients, and the evaluation of this round is due."""
    return ctx.spec.client == "edge" and (order.kind == "evaluate" or evaluation_due(ctx))


def own_scores(
    experiment: Experiment, ctx: Context, state: Any, number: int, stopped: Callable[[], bool]
) -> EdgeScores:
    """Evaluates the models of an edge that is a client; a further test set with several owners sums their scores.

    Args:
        experiment: of the run.
        ctx: of the round.
        state: the algorithm's edge state.
        number: of the edge.
        stopped: whether the round's caller has disconnected.
    """
    edge, hooks = experiment.population.edges[number], experiment.algorithm.edge
    trainer = trainer_for(experiment, _task(ctx), edge.train, edge.test, stopped)
    received, own = hooks.evaluate(ctx, state, trainer)
    model = hooks.own_model(ctx, state)
    if model is None:
        return EdgeScores(received, own, {})
    sets = experiment.population.test_sets
    scores = {name: test_by_owner(trainer, model, sets[name], lambda _: None) for name in ctx.spec.test_on}
    return EdgeScores(received, own, scores)
