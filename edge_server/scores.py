"""The evaluation of an edge that is a client: its models on its own tests and on the further test sets of the spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.context import Ctx
from shared.lab import Lab
from shared.messages import Work
from shared.population import Samples
from shared.records import Score

Scores = tuple[Score | None, Score | None, dict[str, Score]]
"""Of the model received and of the edge's own on its tests, and of its own on further test sets by name."""


def own_scores(lab: Lab, ctx: Ctx, state: Any, number: int, stopped: Callable[[], bool]) -> Scores:
    """What the algorithm makes of a home's models; on a set of several owners the sum over their parts."""
    home = lab.members.homes[number]

    def tested(tests: Samples) -> tuple[Score | None, Score | None]:
        bench = lab.bench(Work(kind="evaluate", batch_size=ctx.spec.batch_size), home.train, tests, stopped)
        return lab.algorithm.edge.evaluate(ctx, state, bench)

    received, mine = tested(home.test)
    own_on: dict[str, Score] = {}
    for name in ctx.spec.test_on if mine else ():
        parts = [tested(part.samples)[1] for part in lab.members.test_sets[name]]
        own_on[name] = sum((part for part in parts if part), Score(n=0, n_correct=0, loss_sum=0.0))
    return received, mine, own_on
