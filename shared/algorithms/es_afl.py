"""ES-AFL.

M. Gong, Y. Gao, J. Wang, Y. Zhang, S. Wang, F. Xie: Adaptive federated learning algorithm based on evolution
strategies. SCIENTIA SINICA Informationis, 2023, in Chinese; algorithms 1 and 2, equations 6 to 12.

    supernet      the global model, over-parameterised; a client trains sub-networks of it
    chromosome    a gene for each group of units (channels, neurons), and one for the weights of each linear layer: the
                  share that is pruned
    parent, child a client's two chromosomes in a round; it trains both sub-networks                  algorithm 2
    fitness       accuracy on the client's validation samples; of equals the smaller sub-network wins          (12)
    supernet     <- each position is the mean, by samples, of the clients that trained it             algorithm 1
    child        <- parent + sigma y, y ~ N(0, C)                     `shared/algorithms/_evolution.py`, (6) to (11)

A client draws its validation samples anew in each round, ranks all units on them, prunes the least important ones
(`shared/training/subnetworks/pruning.py`), and copies the kept weights into a physically smaller network
(`shared/training/subnetworks/units.py`). After training it prunes the smallest weights of linear layers. Pruned units
and weights are excluded from the mean; a position that no client kept stays as it is in the supernet.

`start: 0` with `sigma: 0` is FedAvg on the same training samples, bit for bit.

Deviations and readings:

- The paper says that FedAvg is the case "rate always 1"; everywhere else larger rates prune more, so here FedAvg is the
  case that all genes are 0.
- A group of units has one gene. Layers that a residual connection adds up are one group; a depthwise convolution
  belongs to the group of its input. The output layer keeps its classes and has only the gene of its weights; the first
  layer keeps its image channels.
- floor(gene * units) units are pruned, and at least one is kept. Biases are never pruned alone.
- Weights are pruned before fitness is measured: otherwise nothing would limit these genes.
- Parent and child train on the same batches. If they are equal in fitness and size, the parent wins. The cloud stores
  both.
- Batch-norm parameters and statistics are averaged by position, like all other tensors. Such statistics belong to
  sub-networks and do not fit the wider supernet. With `statistics: retaken` every client also passes its training
  samples through the supernet that it received and sends the mean and mean square of what each batch-norm receives;
  their mean over all samples becomes the supernet's statistics (`shared/training/batch_norm.py`). They are those of the
  supernet before the round. After the last round a phase `statistics` of one round retakes them without training.
- The paper ranks channels by |gamma|, which is 1 for all at the start. With `ties: first` all clients then keep the
  same channels; with `ties: random` each client keeps its own, in an order that it draws once.
- Each client trains the head's bias, so by position it is averaged over all clients, and each weight of the head over
  the few that kept it. With `head_bias: fixed` nobody trains the bias; it keeps its initial value.
- Units of frozen layers are pruned too, since sub-networks are cut from the whole supernet; the supernet's frozen
  tensors do not change.
- Simulated time counts both trainings, and the passes over validation samples, by the sub-networks' operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from shared.algorithms._evolution import (
    STATISTICS,
    Array,
    Params,
    Search,
    Trial,
    Vector,
    after_trial,
    covariance_of,
    equivalent_samples,
    head_bias,
    new_search,
    orders_of,
    passes,
    phases,
    run_trial,
    sends,
    split_samples,
    with_child,
)
from shared.federation.hooks import (
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    Count,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    EdgeView,
    Finish,
    Footprint,
    GlobalModel,
    Local,
    MaskOf,
    Mean,
    ModelState,
    OwnBuffers,
    PerClient,
    Record,
    Seat,
    Tensor,
    TensorMap,
    Trainer,
    WireError,
    delta_of,
    only,
    overlay,
    starting_model,
)
from shared.plots.subnetworks import sub_networks
from shared.training.batch_norm import statistics_in, statistics_of
from shared.training.subnetworks.pruning import genes_of

# ---- records


class Pair(Record):
    """A client's chromosomes in a round."""

    parent: Vector
    child: Vector


class Down(Broadcast):
    """Cloud to edge: the supernet, and the chromosomes of its clients."""

    pairs: dict[str, Pair] = Field(default_factory=dict)


class Order(Broadcast):
    """Edge to seat: the supernet and the seat's chromosomes; None for a seat that only evaluates."""

    pair: Pair | None = None


class Choice(Record):
    """Whether the child won; by layer of the winner, the kept weights and the multiply-adds for one sample."""

    child: bool
    n_weights: dict[str, Count]
    multiply_adds: dict[str, Count]


class Change(Record):
    """Up: trained minus received at the positions that the winner kept (`mask` 1), and the client's choice.

    With `statistics: retaken` it holds, in the place of batch-norm statistics, the moments of the supernet received
    (see `shared.training.batch_norm`), with `mask` 1.
    """

    delta: Annotated[ModelState, Mean(weight="samples", per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]
    choices: Annotated[dict[str, Choice], PerClient()] = Field(default_factory=dict)


class Population(GlobalModel):
    """The cloud's state: the supernet, each client's search, the covariance, and the choices of the last round.

    Attributes:
        trained: by group, 1 for each unit of which some client has ever trained a weight.
    """

    searches: dict[str, Search] = Field(default_factory=dict)
    covariance: tuple[Vector, ...] = ()
    choices: dict[str, Choice] = Field(default_factory=dict)
    trained: dict[str, Tensor] = Field(default_factory=dict)


class Relay(EdgeModel):
    """The edge's state within a round: the chromosomes of its clients."""

    pairs: dict[str, Pair] = Field(default_factory=dict)


# ---- validation of updates


def check(ctx: Context[Params], update: Change) -> None:
    """Validates that each tensor has its mask, and that no choice claims more of a layer than its mask keeps.

    The mask of a sum is 1 where any client kept the position. A frozen layer has none: a choice may claim all of it.
    """
    odd = sorted(update.mask.keys() ^ update.delta.keys())
    if odd:
        raise WireError(f"of delta and mask of {ctx.client_id} only one holds {odd[0][:80]!r}", field="mask")
    if ctx.phase == STATISTICS:
        if update.choices:
            raise WireError(f"choices: none are sent in the phase {STATISTICS}", field="choices")
        return
    layers, masks = ctx.model.units.layers, {layer.name: f"{layer.name}.weight" for layer in ctx.model.units.layers}
    kept = {name: int(update.mask[mask].count_nonzero()) for name, mask in masks.items() if mask in update.mask}
    weights = {layer.name: kept.get(layer.name, layer.n_weights) for layer in layers}
    operations = {layer.name: layer.n_weights * layer.n_positions for layer in layers}
    for client, choice in update.choices.items():
        for figure, most in {"n_weights": weights, "multiply_adds": operations}.items():
            _check_layers(f"choices of {client}: {figure}", getattr(choice, figure), most)


def _check_layers(what: str, claimed: Mapping[str, int], most: Mapping[str, int]) -> None:
    odd = sorted(claimed.keys() ^ most.keys())
    if odd:
        raise WireError(f"{what} are not those of the model's layers, see {odd[0][:80]!r}", field="choices")
    for name, n in claimed.items():
        if n > most[name]:
            raise WireError(f"{what} of {name} are {n}, there can be {most[name]}", field="choices")


# ---- the tiers


class Cloud(CloudHooks[Population, Down, Change]):
    """Algorithm 1: averages by position, and makes new children."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Population:
        return Population(model=model, covariance=_rows(np.eye(len(genes_of(ctx.model.units)))))

    def broadcast(self, ctx: Context[Params], state: Population, edge: int, seats: Sequence[Seat]) -> Down:
        searches = {name: _search(ctx, state, name) for name in _clients(ctx, seats)}
        pairs = {name: Pair(parent=one.parent, child=one.child) for name, one in searches.items()}
        return Down(model=state.model, pairs=pairs)

    def aggregate(self, ctx: Context[Params], state: Population, update: Change) -> Population:
        after = super().aggregate(ctx, state, update)
        moments = only(update.delta, statistics_in(update.delta)) if ctx.params.statistics == "retaken" else {}
        after = after.replace(
            model={**after.model, **statistics_of(moments)}, trained=_trained(ctx, state, update.mask)
        )
        if ctx.phase == STATISTICS:
            return after.replace(choices={})
        strategy = ctx.params.strategy
        now = {
            name: after_trial(_search(ctx, state, name), won.child, strategy) for name, won in update.choices.items()
        }
        searches = {**state.searches, **now}
        each = [searches[name] for name in sorted(searches)]
        covariance = covariance_of(each, len(state.covariance), strategy)  # (7)
        for name in now:
            searches[name] = with_child(now[name], covariance, strategy, ctx.numpy_rng(f"child of {name}"))  # (6)
        return after.replace(searches=searches, covariance=_rows(covariance), choices=update.choices)

    def figures(self, ctx: Context[Params], state: Population) -> dict[str, Any]:
        retaken = {"statistics": "retaken"} if ctx.params.statistics == "retaken" else {}
        choices = list(state.choices.values())
        if not choices:
            return {**retaken}
        supernet = {
            "n_weights": ctx.model.units.n_weights(state.model),
            "multiply_adds": ctx.model.units.multiply_adds(state.model),
        }
        return {
            **retaken,
            "units_trained": {group: float(each.mean()) for group, each in state.trained.items()},
            "supernet": supernet,
            "children_won": sum(choice.child for choice in choices),
            "sigma": float(np.mean([state.searches[name].sigma for name in state.choices])),
            "n_weights": _by_layer([choice.n_weights for choice in choices]),
            "multiply_adds": _by_layer([choice.multiply_adds for choice in choices]),
        }


def _trained(ctx: Context, state: Population, mask: TensorMap) -> dict[str, Tensor]:
    """Returns by group 1 for each unit of which some client has trained a weight, in this round or before."""
    found = dict(state.trained)
    for layer in ctx.model.units.layers if ctx.phase != STATISTICS else ():
        weight = f"{layer.name}.weight"
        if layer.group is not None and weight in mask:
            now = (mask[weight].flatten(1) > 0).any(1).to(torch.float32)
            found[layer.group] = torch.maximum(now, found.get(layer.group, now))
    return found


def _rows(covariance: Array) -> tuple[Vector, ...]:
    return tuple(map(tuple, covariance.tolist()))


def _by_layer(each: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Returns the mean over clients, by layer."""
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def _clients(ctx: Context[Params], seats: Sequence[Seat]) -> list[str]:
    """Returns the client ids of the seats that train."""
    return [ctx.at(seat=seat.number).client_id for seat in seats if seat.role != "held_out"]


def _search(ctx: Context[Params], state: Population, client: str) -> Search:
    """Returns a client's search; a new one before its first choice."""
    if client in state.searches:
        return state.searches[client]
    start, covariance = (ctx.params.start,) * len(state.covariance), np.asarray(state.covariance)
    return new_search(
        start, ctx.params.sigma, covariance, ctx.params.strategy, ctx.numpy_rng(f"first child of {client}")
    )


class Edge(EdgeHooks[Relay, Down, Change, Order]):
    """Sends each seat its chromosomes; the sum of its seats' updates goes up unchanged."""

    def init(self, ctx: Context[Params]) -> Relay:
        return Relay()

    def forms_model(self, ctx: Context[Params]) -> bool:
        return False

    def select(self, ctx: Context[Params], state: Relay, seats: Sequence[Seat], view: EdgeView) -> list[int]:
        return [seat.number for seat in seats] if ctx.phase == STATISTICS else super().select(ctx, state, seats, view)

    def begin(self, ctx: Context[Params], state: Relay, broadcast: Down) -> Begin[Relay]:
        return super().begin(ctx, state.replace(pairs=broadcast.pairs), broadcast)

    def dispatch(self, ctx: Context[Params], state: Relay, seat: Seat) -> Order:
        return Order(model=state.start, pair=state.pairs.get(ctx.at(seat=seat.number).client_id))

    def finish(self, ctx: Context[Params], state: Relay) -> Finish[Relay, Change]:
        return super().finish(ctx, state.replace(pairs={}))


class Device(DeviceHooks[OwnBuffers, Order, Change]):
    """Algorithm 2: trains two sub-networks and sends the better one."""

    def local_update(
        self, ctx: Context[Params], state: OwnBuffers, message: Order, trainer: Trainer
    ) -> Local[OwnBuffers, Change]:
        start = starting_model(state, message)
        moments = trainer.moments(start, trainer.samples) if ctx.params.statistics == "retaken" else {}
        if ctx.phase == STATISTICS:
            n_passed = math.ceil(trainer.n_samples / 3)  # a pass forward is a third
            return Local(state, Change(delta=moments, mask=_ones(moments)), n_passed=n_passed)
        pair = message.pair
        if pair is None:
            raise WireError(f"{ctx.client_id} is to train, but got no chromosomes", field="pair")
        parts = split_samples(ctx, trainer, ctx.params.validation)
        counts = trainer.importance(start, parts[1])
        cut = partial(run_trial, ctx, start, counts=counts, trainer=trainer, parts=parts, **_choices_of(ctx, start))
        trials = [cut(chromosome=pair.parent)]
        if pair.child != pair.parent:
            trials.append(cut(chromosome=pair.child))
        child = trials[-1].rank > trials[0].rank
        best = trials[-1] if child else trials[0]
        n_passed = len(parts[1]) + (trainer.n_samples if moments else 0)
        n_equal = equivalent_samples(ctx.model.units, start, trials, len(parts[1]), n_passed)
        return _contribution(ctx, start, best, child, n_equal, moments)


def _ones(like: TensorMap) -> TensorMap:
    return {name: torch.ones_like(tensor) for name, tensor in like.items()}


def _choices_of(ctx: Context[Params], start: TensorMap) -> dict[str, Any]:
    """Returns the arguments of `run_trial` by `ties` and `head_bias`."""
    fixed = ctx.params.head_bias == "fixed"
    trains = {*ctx.model.trainable_names} - {head_bias(ctx)} if fixed else None
    return {"orders": orders_of(ctx) if ctx.params.ties == "random" else None, "trains": trains}


def _contribution(
    ctx: Context[Params], start: TensorMap, best: Trial, child: bool, n_equal: int, moments: TensorMap
) -> Local[OwnBuffers, Change]:
    """Returns what the winner contributes; lines 5 to 8."""
    whole = {name: torch.where(best.mask[name] > 0, best.whole[name], start[name]) for name in start}
    delta = only(delta_of(ctx, whole, start), sends(ctx, start)["delta"])
    operations = ctx.model.units.multiply_adds(best.model)
    choice = Choice(child=child, n_weights=best.n_weights, multiply_adds=operations)
    sizes = {"n_weights": sum(best.n_weights.values()), "multiply_adds": sum(operations.values())}
    return Local(
        OwnBuffers(buffers=only(overlay(start, whole), ctx.model.buffer_names) if ctx.buffers == "local" else {}),
        Change(
            delta={**delta, **moments},
            mask={**only(best.mask, delta), **_ones(moments)},
            choices={ctx.client_id: choice},
        ),
        best.model,
        best.trained,
        n_trained=n_equal,
        figures={"child": child, "fitness": best.rank[0], **sizes},
    )


PICTURES = sub_networks

ALGORITHM = Algorithm(
    name="es_afl",
    paper="Gong et al.: Adaptive federated learning algorithm based on evolution strategies. "
    "SCIENTIA SINICA Informationis 2023",
    params=Params,
    samples="numbers",
    targets=("classes",),
    dtypes="float32",
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
    phases=phases,
    footprint=Footprint(sends=sends, passes=passes),
)
