"""Server optimisers: a mean update is a pseudo-gradient, by which cloud or edge take a step of SGD, Adam and others.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan: Adaptive Federated
Optimization. ICLR 2021, algorithm 2, and algorithm 1 with SGD with momentum as the server's optimiser.

    sgd       x <- x + eta Delta
    momentum  m <- beta1 m + Delta                          x <- x + eta m
    others    m <- beta1 m + (1 - beta1) Delta              x <- x + eta m / (sqrt(v) + tau)
    adagrad   v <- v + Delta^2
    yogi      v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
    adam      v <- beta2 v + (1 - beta2) Delta^2

m starts as 0 and v as tau^2, the least that the paper allows; moments are not corrected for their start. Delta is the
field `delta` of the mean update. The optimiser puts its step in the place of Delta, and the algorithm's own hooks go
on as ever. `sgd` with rate 1, and `momentum` with beta1 = 0 as well, leave Delta as it is: FedAvg, bit for bit.

Where a tier does not wait for all, Delta is the mean times its mean staleness weight, as it would be added without an
optimiser. Buffers (batch-norm statistics) keep their mean. A round without updates takes no step. An edge takes one
step in each edge round; its moments persist over rounds, since they are part of its state. A parameter that an update
lacks keeps its moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from pydantic import Field

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.scores import Score
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.context import Context, EdgeView
from shared.federation.hooks import (
    Admission,
    Advance,
    Algorithm,
    Begin,
    CloudHooks,
    EdgeHooks,
    Finish,
    Trainer,
    Transform,
    damped,
)
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat
from shared.spec.experiment import ExperimentSpec
from shared.spec.optimizers import ServerAdagrad, ServerAdam, ServerMomentum, ServerOptimizer, ServerSgd, ServerYogi

S = TypeVar("S")
Adaptive = ServerAdagrad | ServerAdam | ServerYogi


class Moments(Record):
    """What an optimiser remembers of earlier mean updates: m and v by parameter; empty before the first.

    Attributes:
        first, second: m and v; an optimiser without momentum or without v keeps none. Those of parameters of 16 bits
            are float32: squares of small updates would be 0, and so would tau.
    """

    first: TensorMap = Field(default_factory=dict)
    second: TensorMap = Field(default_factory=dict)


class Optimised(Record, Generic[S]):
    """The state of a tier with a server optimiser.

    Attributes:
        of: the algorithm's state.
        moments: after the last step.
        before: at an edge, the moments before the step of the present edge round, which further waves take anew.
        taken: at an edge, the edge round of the last step; -1 before the first of a round.
    """

    of: S
    moments: Moments = Moments()
    before: Moments = Moments()
    taken: int = -1


def step(
    how: ServerOptimizer, moments: Moments, delta: TensorMap, buffers: frozenset[str]
) -> tuple[TensorMap, Moments]:
    """Returns what is added to the model in place of a mean update, and the new moments.

    Args:
        how: the optimiser.
        moments: after the step before.
        delta: the mean update by name.
        buffers: names of the tensors that keep their mean.
    """
    moved, first, second = dict(delta), dict(moments.first), dict(moments.second)
    for name, change in delta.items():
        if name in buffers:
            continue
        change = change if change.element_size() > 2 else change.float()
        mean = change
        if not isinstance(how, ServerSgd) and how.beta1:
            mean = first[name] = _first_moment(how, first.get(name), change)
        if isinstance(how, Adaptive):
            second[name] = _second_moment(how, second.get(name), change)
            mean = mean / (second[name].sqrt() + how.tau)
        moved[name] = (mean * how.lr).to(delta[name].dtype)
    return moved, Moments(first=first, second=second)


def _first_moment(how: ServerMomentum | Adaptive, before: Tensor | None, change: Tensor) -> Tensor:
    """Returns m; before the first step it is 0."""
    new = change if isinstance(how, ServerMomentum) else change * (1 - how.beta1)
    return new if before is None else before * how.beta1 + new


def _second_moment(how: Adaptive, before: Tensor | None, change: Tensor) -> Tensor:
    """Returns v; before the first step it is tau^2."""
    square = change * change
    known = torch.full_like(change, how.tau**2) if before is None else before
    if isinstance(how, ServerAdagrad):
        return known + square
    if isinstance(how, ServerAdam):
        return known * how.beta2 + square * (1 - how.beta2)
    return known - square * torch.sign(known - square) * (1 - how.beta2)


# ---- the hooks of an algorithm, with steps in the place of mean updates


class OptimisedCloud(CloudHooks[Any, Any, Any]):
    """An algorithm's cloud, whose mean updates become steps of an optimiser."""

    def __init__(self, hooks: CloudHooks[Any, Any, Any], how: ServerOptimizer) -> None:
        self.hooks, self.how = hooks, how

    def init(self, ctx: Context, model: TensorMap) -> Optimised[Any]:
        return Optimised(of=self.hooks.init(ctx, model))

    def broadcast(self, ctx: Context, state: Optimised[Any], edge: int, seats: Sequence[Seat]) -> Any:
        return self.hooks.broadcast(ctx, state.of, edge, seats)

    def aggregate(self, ctx: Context, state: Optimised[Any], update: Any) -> Optimised[Any]:
        delta, moments = step(self.how, state.moments, damped(ctx, update.delta), ctx.model.buffer_names)
        of = self.hooks.aggregate(ctx.at(staleness_weight=1.0), state.of, update.replace(delta=delta))
        return Optimised(of=of, moments=moments)

    def models(self, ctx: Context, state: Optimised[Any]) -> dict[str, TensorMap]:
        return self.hooks.models(ctx, state.of)

    def figures(self, ctx: Context, state: Optimised[Any]) -> dict[str, Any]:
        return self.hooks.figures(ctx, state.of)

    def prepare(self, ctx: Context, state: Optimised[Any], owner: str | None) -> Transform | None:
        return self.hooks.prepare(ctx, state.of, owner)

    def evaluate(self, ctx: Context, state: Optimised[Any], trainer: Trainer) -> dict[str, Score]:
        return self.hooks.evaluate(ctx, state.of, trainer)


class OptimisedEdge(EdgeHooks[Any, Any, Any, Any, Any]):
    """An algorithm's edge, whose mean updates become steps of an optimiser."""

    def __init__(self, hooks: EdgeHooks[Any, Any, Any, Any, Any], how: ServerOptimizer) -> None:
        self.hooks, self.how = hooks, how

    def init(self, ctx: Context) -> Optimised[Any]:
        return Optimised(of=self.hooks.init(ctx))

    def forms_model(self, ctx: Context) -> bool:
        return self.hooks.forms_model(ctx)

    def begin(self, ctx: Context, state: Optimised[Any], broadcast: Any) -> Begin[Any]:
        begun = self.hooks.begin(ctx, state.of, broadcast)
        return replace(begun, state=Optimised(of=begun.state, moments=state.moments))

    def select(self, ctx: Context, state: Optimised[Any], seats: Sequence[Seat], view: EdgeView) -> list[int]:
        return self.hooks.select(ctx, state.of, seats, view)

    def schedule(self, ctx: Context, state: Optimised[Any], seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
        return self.hooks.schedule(ctx, state.of, seats, view)

    def dispatch(self, ctx: Context, state: Optimised[Any], seat: Seat) -> Any:
        return self.hooks.dispatch(ctx, state.of, seat)

    def admit(self, ctx: Context, state: Optimised[Any], reports: Mapping[int, Any]) -> Admission[Any]:
        admitted = self.hooks.admit(ctx, state.of, reports)
        return replace(admitted, state=state.replace(of=admitted.state))

    def aggregate(self, ctx: Context, state: Optimised[Any], update: Any) -> Optimised[Any]:
        """Takes the step of an edge round; after a further wave of it, whose mean has all updates, anew."""
        before = state.before if state.taken == ctx.edge_round else state.moments
        delta, moments = step(self.how, before, damped(ctx, update.delta), ctx.model.buffer_names)
        after = self.hooks.aggregate(ctx.at(staleness_weight=1.0), state.of, update.replace(delta=delta))
        return Optimised(of=after, moments=moments, before=before, taken=ctx.edge_round)

    def advance(
        self, ctx: Context, state: Optimised[Any], tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Any]]
    ) -> Advance[Any]:
        done = self.hooks.advance(ctx, state.of, tasks, outcomes)
        return replace(done, state=state.replace(of=done.state))

    def finish(self, ctx: Context, state: Optimised[Any]) -> Finish[Any, Any]:
        done = self.hooks.finish(ctx, state.of)
        return replace(done, state=Optimised(of=done.state, moments=state.moments))

    def own_model(self, ctx: Context, state: Optimised[Any]) -> TensorMap | None:
        return self.hooks.own_model(ctx, state.of)

    def evaluate(self, ctx: Context, state: Optimised[Any], trainer: Trainer) -> tuple[Score | None, Score | None]:
        return self.hooks.evaluate(ctx, state.of, trainer)


def with_server_optimizers(algorithm: Algorithm, spec: ExperimentSpec) -> Algorithm:
    """Returns the algorithm with the spec's server optimisers; itself if the spec has none.

    Raises:
        BadInput: the algorithm's updates are no deltas, or its edges form no models; names the field.
    """
    chosen = spec.server_optimizer
    if chosen is None or (chosen.cloud is None and chosen.edges is None):
        return algorithm
    if not algorithm.takes_server_optimizer:
        why = f"{algorithm.name} does more with a mean update than to add its `delta` to a model"
        raise BadInput(f"server_optimizer: {why}", field="server_optimizer")
    found = algorithm
    if chosen.cloud is not None:
        kind: Any = Optimised[algorithm.cloud_state]  # type: ignore[name-defined]
        found = replace(found, cloud=OptimisedCloud(algorithm.cloud, chosen.cloud), cloud_state=kind)
    if chosen.edges is not None:
        if not algorithm.edges_form_models(spec):
            why = "its edges form no models; with edge_rounds above 1 they do"
            raise BadInput(f"server_optimizer.edges: {algorithm.name}: {why}", field="server_optimizer.edges")
        kind = Optimised[algorithm.edge_state]  # type: ignore[name-defined]
        found = replace(found, edge=OptimisedEdge(algorithm.edge, chosen.edges), edge_state=kind)
    return found
