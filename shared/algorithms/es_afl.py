"""ES-AFL.

M. Gong, Y. Gao, J. Wang, Y. Zhang, S. Wang, F. Xie: Adaptive federated learning algorithm based on evolution
strategies. SCIENTIA SINICA Informationis, 2023, in Chinese; algorithms 1 and 2, equations 6 to 12.

    supernet      the global model, over-parameterised; a client trains sub-networks of it
    chromosome    of each group of units (channels, neurons) and of the weights of each linear layer, which share of it
                  is left out
    parent, child two chromosomes a round; a client trains both sub-networks                          algorithm 2
    fitness       accuracy on the client's validation samples; of equals the smaller sub-network wins          (12)
    supernet     <- position by position the mean, by samples, of those who trained it                algorithm 1
    child        <- parent + sigma y, y ~ N(0, C)                     `shared/algorithms/_evolution.py`, (6) to (11)

A client draws its validation samples anew in each round, ranks all units on them, leaves out the least important
(`shared/training/subnetworks/pruning.py`), and copies the kept weights into a physically smaller network
(`shared/training/subnetworks/units.py`). After training it leaves out the lightest weights of linear layers. What was
left out, of either kind, has no part in the mean, and where nobody kept a position the supernet stays as it is.

`start: 0` with `sigma: 0` is FedAvg on the same training samples, bit for bit.

Deviations and readings:

- The paper says that FedAvg is the case "rate always 1"; everywhere else larger rates leave out more: all genes 0.
- One gene a group: of what residuals add up one for all its layers; a depthwise convolution has its input's. The
  output layer keeps its classes and has the weights' gene only; the first layer keeps its image channels.
- floor(gene * units) are left out, and one unit always stays. Biases are never left out alone.
- Weights are left out before fitness is measured: else nothing would hold these genes back.
- Parent and child train on the same batches. A tie of equal size goes to the parent. The cloud keeps both.
- Batch-norm parameters and statistics are averaged by position like all else.
- Simulated time counts both trainings, and the passes over validation samples, by the sub-networks' operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from shared.algorithms._evolution import (
    Array,
    Search,
    Strategy,
    Trial,
    Vector,
    begun,
    covariance_of,
    divided,
    judged,
    n_trained,
    tried,
    with_child,
)
from shared.federation.hooks import (
    Algorithm,
    Begin,
    CloudHooks,
    Context,
    Count,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    Footprint,
    GlobalModel,
    Local,
    MaskOf,
    Mean,
    ModelState,
    OwnBuffers,
    Passes,
    PerClient,
    Record,
    Seat,
    TensorMap,
    Trainer,
    WireError,
    delta_of,
    only,
    overlay,
    starting_model,
)
from shared.plots.subnetworks import sub_networks
from shared.training.subnetworks.pruning import genes_of


class Params(Record):
    """What the paper does not give is ours.

    Attributes:
        start: every gene of a client's first parent.
        sigma: first step size; 0 = chromosomes stay as they are.
        alpha: learning rate of path and step size.
        max_gene: the largest share that is left out.
        max_sigma: the largest step size.
        shrinkage: of the covariance, towards the identity.
        covariance: `shared` by all clients as in (7), or the `identity` (the paper's ablation).
        validation: share of a client's training samples on which units are ranked and sub-networks compared.
    """

    start: Annotated[float, Field(ge=0, le=1)] = 0.2
    sigma: Annotated[float, Field(ge=0, le=1)] = 0.1
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2
    max_gene: Annotated[float, Field(ge=0, lt=1)] = 0.95
    max_sigma: Annotated[float, Field(gt=0, le=10)] = 0.5
    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.1
    covariance: Literal["shared", "identity"] = "shared"
    validation: Annotated[float, Field(gt=0, le=0.5)] = 0.1

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        for first, most in (("start", "max_gene"), ("sigma", "max_sigma")):
            if getattr(self, first) > getattr(self, most):
                raise ValueError(f"{first} {getattr(self, first):g} is above {most} {getattr(self, most):g}")
        return self

    @property
    def strategy(self) -> Strategy:
        """How the search goes."""
        adapted = self.covariance == "shared"
        return Strategy(self.alpha, self.max_gene, self.max_sigma, self.shrinkage, adapted)


# ---- records


class Pair(Record):
    """A client's chromosomes of a round."""

    parent: Vector
    child: Vector


class Down(Record):
    """To an edge: the supernet, and the chromosomes of its clients."""

    model: ModelState
    pairs: dict[str, Pair] = Field(default_factory=dict)


class Order(Record):
    """To a seat: the supernet and its chromosomes; one that only evaluates has none."""

    model: ModelState
    pair: Pair | None = None


class Choice(Record):
    """Whether the child won; of the winner, by layer, weights that are not left out, and what a sample costs."""

    child: bool
    n_weights: dict[str, Count]
    multiply_adds: dict[str, Count]


class Change(Record):
    """Up: trained minus received where the winner has it, and the choice."""

    delta: Annotated[ModelState, Mean(weight="samples", per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]
    choices: Annotated[dict[str, Choice], PerClient()] = Field(default_factory=dict)


class Population(GlobalModel):
    """The cloud's state: the supernet, each client's search, the covariance, and what the clients last said."""

    searches: dict[str, Search] = Field(default_factory=dict)
    covariance: tuple[Vector, ...] = ()
    choices: dict[str, Choice] = Field(default_factory=dict)


class Relay(EdgeModel):
    """The edge's state: within a round the chromosomes of its clients."""

    pairs: dict[str, Pair] = Field(default_factory=dict)


# ---- what may come in


def check(ctx: Context, update: Any) -> None:
    """Every tensor has its mask, and a client's sub-network has no more of each layer than was kept of it.

    Of a sum the masks are where anybody kept a position.
    """
    odd = sorted(update.mask.keys() ^ update.delta.keys())
    if odd:
        raise WireError(f"of delta and mask of {ctx.client_id} only one holds {odd[0][:80]!r}", field="mask")
    weights = {layer.name: int(update.mask[f"{layer.name}.weight"].count_nonzero()) for layer in ctx.model.units.layers}
    whole = {"n_weights": weights, "multiply_adds": ctx.model.units.multiply_adds(update.mask)}
    for client, choice in update.choices.items():
        for figure, most in whole.items():
            _check_layers(f"choices of {client}: {figure}", getattr(choice, figure), most)


def _check_layers(what: str, told: Mapping[str, int], most: Mapping[str, int]) -> None:
    odd = sorted(told.keys() ^ most.keys())
    if odd:
        raise WireError(f"{what} are not those of the model's layers, see {odd[0][:80]!r}", field="choices")
    for name, n in told.items():
        if n > most[name]:
            raise WireError(f"{what} of {name} are {n}, there can be {most[name]}", field="choices")


# ---- the tiers


class Cloud(CloudHooks):
    """Algorithm 1: merges by position, and breeds."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        return Population(model=model, covariance=_rows(np.eye(len(genes_of(ctx.model.units)))))

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        searches = {name: _search(ctx, state, name) for name in _clients(ctx, seats)}
        pairs = {name: Pair(parent=one.parent, child=one.child) for name, one in searches.items()}
        return Down(model=state.model, pairs=pairs)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        after = super().aggregate(ctx, state, update)
        strategy = ctx.params.strategy
        now = {name: judged(_search(ctx, state, name), won.child, strategy) for name, won in update.choices.items()}
        searches = {**state.searches, **now}
        each = [searches[name] for name in sorted(searches)]
        covariance = covariance_of(each, len(state.covariance), strategy)  # (7)
        for name in now:
            searches[name] = with_child(now[name], covariance, strategy, ctx.numpy_rng(f"child of {name}"))  # (6)
        return after.replace(searches=searches, covariance=_rows(covariance), choices=update.choices)

    def figures(self, ctx: Context, state: Any) -> dict[str, Any]:
        told = list(state.choices.values())
        if not told:
            return {}
        supernet = {
            "n_weights": ctx.model.units.n_weights(state.model),
            "multiply_adds": ctx.model.units.multiply_adds(state.model),
        }
        return {
            "supernet": supernet,
            "children_won": sum(choice.child for choice in told),
            "sigma": float(np.mean([state.searches[name].sigma for name in state.choices])),
            "n_weights": _by_layer([choice.n_weights for choice in told]),
            "multiply_adds": _by_layer([choice.multiply_adds for choice in told]),
        }


def _rows(covariance: Array) -> tuple[Vector, ...]:
    return tuple(map(tuple, covariance.tolist()))


def _by_layer(each: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The mean over clients, by layer."""
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def _clients(ctx: Context, seats: Sequence[Seat]) -> list[str]:
    """Names of the seats that train."""
    return [ctx.at(seat=seat.number).client_id for seat in seats if seat.role != "held_out"]


def _search(ctx: Context, state: Population, client: str) -> Search:
    """A client's search; of one that has told nothing yet, a new one."""
    if client in state.searches:
        return state.searches[client]
    start, covariance = (ctx.params.start,) * len(state.covariance), np.asarray(state.covariance)
    return begun(start, ctx.params.sigma, covariance, ctx.params.strategy, ctx.numpy_rng(f"first child of {client}"))


class Edge(EdgeHooks):
    """Hands each seat its chromosomes; the sums of its seats go up as they are."""

    def init(self, ctx: Context) -> Any:
        return Relay()

    def forms_model(self, ctx: Context) -> bool:
        return False

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        return super().begin(ctx, state.replace(pairs=broadcast.pairs), broadcast)

    def dispatch(self, ctx: Context, state: Any, seat: Seat) -> Any:
        return Order(model=state.start, pair=state.pairs.get(ctx.at(seat=seat.number).client_id))

    def finish(self, ctx: Context, state: Any) -> Finish:
        return super().finish(ctx, state.replace(pairs={}))


class Device(DeviceHooks):
    """Algorithm 2: two sub-networks, of which the better one goes up."""

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start, parts = starting_model(state, message), divided(ctx, trainer)
        counts, pair = trainer.importance(start, parts[1]), message.pair
        trials = [tried(ctx, start, pair.parent, counts, trainer, parts)]
        if pair.child != pair.parent:
            trials.append(tried(ctx, start, pair.child, counts, trainer, parts))
        child = trials[-1].rank > trials[0].rank
        best = trials[-1] if child else trials[0]
        return _told(ctx, start, best, child, n_trained(ctx.model.units, start, trials, len(parts[1])))


def _told(ctx: Context, start: TensorMap, best: Trial, child: bool, n_equal: int) -> Local:
    """The winner's contribution; lines 5 to 8."""
    whole = {name: torch.where(best.stays[name] > 0, best.whole[name], start[name]) for name in start}
    delta = delta_of(ctx, whole, start)
    operations = ctx.model.units.multiply_adds(best.model)
    choice = Choice(child=child, n_weights=best.n_weights, multiply_adds=operations)
    sizes = {"n_weights": sum(best.n_weights.values()), "multiply_adds": sum(operations.values())}
    return Local(
        OwnBuffers(buffers=only(overlay(start, whole), ctx.model.buffer_names) if ctx.buffers == "local" else {}),
        Change(delta=delta, mask=only(best.stays, delta), choices={ctx.client_id: choice}),
        best.model,
        best.trained,
        n_trained=n_equal,
        figures={"child": child, "fitness": best.rank[0], **sizes},
    )


def passes(params: Params) -> Passes:
    """Of the whole supernet; so it is at most what parent and child, and the passes over validation samples, cost."""
    n_trials = 2 if params.sigma else 1
    return Passes(of_step=n_trials, beside=params.validation * (1 + n_trials) / 3)  # a pass forward is a third


PICTURES = sub_networks

ALGORITHM = Algorithm(
    name="es_afl",
    paper="Gong et al.: Adaptive federated learning algorithm based on evolution strategies. "
    "SCIENTIA SINICA Informationis 2023",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Down,
    message=Order,
    update=Change,
    cloud_state=Population,
    edge_state=Relay,
    needs={"client": "device", "edge_rounds": 1, "schedule": "own_data"},
    check=check,
    footprint=Footprint(passes=passes),
)
