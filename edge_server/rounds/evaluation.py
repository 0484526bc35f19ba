"""The evaluation of an edge that is a client: its models on its own tests and on the further test sets of the spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.core.scores import Score
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import test_by_owner
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for

Scores = tuple[Score | None, Score | None, dict[str, Score]]
"""Of the model received and of the edge's own on its tests, and of its own on further test sets by name."""


def own_scores(experiment: Experiment, ctx: Context, state: Any, number: int, stopped: Callable[[], bool]) -> Scores:
    """What the algorithm makes of a home's models; on a set of several owners the sum over their parts."""
    home, hooks = experiment.population.edges[number], experiment.algorithm.edge
    trainer = trainer_for(
        experiment, Task(kind="evaluate", batch_size=ctx.spec.batch_size), home.train, home.test, stopped
    )
    received, mine = hooks.evaluate(ctx, state, trainer)
    model = hooks.own_model(ctx, state)
    if model is None:
        return received, mine, {}
    sets = experiment.population.test_sets
    return (
        received,
        mine,
        {name: test_by_owner(trainer, model, sets[name], lambda _: None) for name in ctx.spec.test_on},
    )
