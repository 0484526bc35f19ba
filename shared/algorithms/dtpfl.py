"""DTPFL, its learning algorithm.

Y. Liu, X. Wu, C. Liu: Research on Personalized Federated Learning Algorithm in Industrial Internet of Things. Journal
of Chinese Computer Systems (Xiaoxing Weixing Jisuanji Xitong) 46(1), 2025, 209-216, in Chinese. Equations 7 to 9,
algorithms 1 and 2. (The paper does not name its method. Its scheduler is part of spec and edge server, not of this
file.)

A client is a user: an edge, whose devices and own worker train on shares of its samples. A model is base layers, near
the input, and personal layers: the last P. DS_j are user j's training samples.

    pretrain, R1 rounds    base     <- sum_j |DS_j| base_j / sum_j |DS_j|                                  (7)
                           personal_j stays with user j                                              algorithm 1
    then once              v_j = last layer of user j, weight and bias in a row
                           dist(v_i, v_j) = 1 - v_i.v_j / |v_i||v_j|                                       (8)
                           average linkage, merging while the distance is at most TH            algorithm 2, line 1
    group, R2 rounds       base as in (7)
                           personal_C <- sum_{j in C} |DS_j| personal_j / sum_{j in C} |DS_j|              (9)

R1 is `pretrain_rounds` (at most the spec's `num_rounds`), R2 the remaining rounds. TH = 0 (with R1 >= 1) is FedPer for
R1 + R2 rounds. TH = 2 is FedAvg from the mean of the personal layers on; with R1 = 0 as well, the whole run is FedAvg.

Deviations and readings:

- The users' personal layers are sent up in the last round of pre-training, and averaged by (9) before the first group
  round (algorithm 2, line 2).
- TH "auto" follows the paper's advice (section 3.4.2): the middle of the largest gap between sorted distances if that
  gap is clear (its upper end at least twice its lower), else the 20 % quantile of the distances.
- With R1 = 0 all last layers are equal: all users are one group from the start.
- A user that is offline at the clustering, or joins later, first pre-trains for R1 rounds of its own: its base layers
  are averaged with all, its personal layers stay. Then it joins the group with the least mean distance between its last
  layer and those by which the group's members were grouped, and starts from that group's layers; if this distance is
  above TH, it becomes a group of its own. (This is average linkage; the paper leaves it open.)
- Personal layers are sent down in every round; before the clustering they are the initial ones, from which a user
  without a state starts.
- A layer is a convolution or linear module with the batch-norm that follows it; buffers belong to their layer. The last
  layers are those that the forward pass uses last.
- A user's model is tested before it trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from shared.core.clustering import Floats, Gap, average_linkage, cosine_distances, groups_at
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
    ExperimentSpec,
    Finish,
    Fit,
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    OwnBuffers,
    PerClient,
    PersonalParams,
    Phase,
    Record,
    Score,
    Seat,
    Tensor,
    TensorMap,
    Trainer,
    Training,
    add,
    delta_of,
    only,
    overlay,
    own_buffers,
    personal_tensors,
    uploaded_names,
    without,
)
from shared.plots.groups import dendrogram

MAX_LISTED = 64
"""With at most this many users the round's record lists all pairwise distances; with more, only the merges."""

# ---- parameters and records


class Params(PersonalParams):
    """The paper's P, R1 and TH.

    Attributes:
        personal_layers: number of layers, counted from the output, that only a group shares.
        pretrain_rounds: rounds before the users are grouped, in which personal layers stay with their user.
        threshold: largest mean cosine distance, 0 to 2, between the last layers of a group; `auto` reads it from them.
    """

    personal_layers: Annotated[int, Field(ge=1, le=1000)] = 1
    pretrain_rounds: Annotated[int, Field(ge=0, le=100_000)] = 10
    threshold: Annotated[float, Field(ge=0, le=2)] | Literal["auto"] = "auto"


class Down(Broadcast):
    """Cloud to user: the base, with the personal layers of the user's group; without a group with the initial ones."""

    group: str | None = None


class Sent(Record):
    """The personal layers of a user that needs a group, and |DS_j|."""

    layers: ModelState
    samples: Annotated[int, Field(ge=1)]


class Change(Record):
    """Up: trained minus received, from devices for all layers, from users for the base and in one of the other fields.

    Attributes:
        delta: trained minus received.
        grouped: trained minus received of the personal layers, by group.
        users: by user, the personal layers themselves, if the user needs a group.
    """

    delta: Annotated[ModelState, Mean(weight="samples")]
    grouped: Annotated[dict[str, ModelState], Mean(weight="samples", by_group=True)] = Field(default_factory=dict)
    users: Annotated[dict[str, Sent], PerClient()] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: the base (in `model`, with the initial personal layers), and the groups after the clustering.

    Attributes:
        groups: name of each user's group.
        personal: each group's personal layers.
        last: the last layer by which each user was grouped.
        threshold: the TH that was used.
        clustered, changed: the round of the clustering, and the last round in which a user was put into a group.
    """

    groups: dict[str, str] = Field(default_factory=dict)
    personal: dict[str, ModelState] = Field(default_factory=dict)
    last: dict[str, Tensor] = Field(default_factory=dict)
    threshold: float = 0.0
    clustered: Count = 0
    changed: Count = 0


class User(EdgeModel):
    """An edge's state.

    Attributes:
        personal: the user's personal layers in pre-training; empty afterwards.
        rounds: number of rounds that it has pre-trained.
        group: name of its group; None in pre-training.
    """

    personal: ModelState = Field(default_factory=dict)
    rounds: Count = 0
    group: str | None = None


def n_pretraining(spec: ExperimentSpec, params: Params) -> int:
    """Returns R1, at most the rounds of the run."""
    return min(params.pretrain_rounds, spec.num_rounds)


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """Returns pre-training and group training; rounds added to a run later belong to the second phase."""
    first = n_pretraining(spec, params)
    return Phase("pretrain", first), Phase("group", spec.num_rounds - first)


# ---- grouping


def last_layer(ctx: Context[Params], personal: Mapping[str, Tensor]) -> Tensor:
    """Returns v: weight and bias of the last layer that is trained, flattened into one row."""
    trained = [[name for name in layer.parameters if name in personal] for layer in ctx.model.layers]
    return torch.cat([personal[name].flatten() for name in [names for names in trained if names][-1]])


def rows(last: Mapping[str, Tensor], users: Sequence[str]) -> Floats:
    """Returns the last layers of some users, float64, (n_users, n)."""
    return np.stack([last[user].double().numpy() for user in users])


def by_number(users: Iterable[str]) -> list[str]:
    """Returns users in the order of their numbers: edge-2 before edge-10."""
    return sorted(users, key=lambda user: int(user.rpartition("-")[2]))


def mean_layers(models: Sequence[TensorMap], weights: Sequence[int]) -> TensorMap:
    """Returns the weighted mean, summed in float64 in the given order; integer tensors (counters) are the first's."""
    total = max(sum(weights), 1)

    def mean(name: str) -> Tensor:
        first = models[0][name]
        if not first.is_floating_point():
            return first
        terms = [model[name].double() * (n / total) for model, n in zip(models, weights, strict=True)]
        return torch.stack(terms).sum(dim=0).to(first.dtype)

    return {name: mean(name) for name in models[0]}


def complete_layers(ctx: Context[Params], update: Change) -> dict[str, Sent]:
    """Returns what users sent that need a group, by number; one with incomplete layers is ignored and sends again."""
    mine = personal_tensors(ctx)
    users = (ctx.at(edge=edge).client_id for edge in range(ctx.n_clients))
    return {user: sent for user in users if (sent := update.users.get(user)) and sent.layers.keys() == mine}


def cluster_users(ctx: Context[Params], state: Federation, sent: Mapping[str, Sent]) -> Federation:
    """Returns the state after the clustering of these users."""
    users, layers = list(sent), [each.layers for each in sent.values()]
    last = {user: last_layer(ctx, sent[user].layers) for user in users}
    apart = cosine_distances(rows(last, users))  # (8)
    threshold = Gap.of(apart).threshold if ctx.params.threshold == "auto" else ctx.params.threshold
    groups: dict[str, str] = {}
    personal: dict[str, TensorMap] = {}
    for number, members in enumerate(groups_at(average_linkage(apart), threshold)):  # algorithm 2, line 1
        groups |= {users[i]: str(number) for i in members}
        sizes = [sent[users[i]].samples for i in members]
        personal[str(number)] = mean_layers([layers[i] for i in members], sizes)  # (9)
    now = {"clustered": ctx.round_no, "changed": ctx.round_no}
    return state.replace(groups=groups, personal=personal, last=last, threshold=threshold, **now)


def add_users(ctx: Context[Params], state: Federation, sent: Mapping[str, Sent]) -> Federation:
    """Returns the state after later users, one after another, joined the nearest group or became one of their own."""
    groups, personal, last = dict(state.groups), dict(state.personal), dict(state.last)
    for user in sent:
        last[user] = last_layer(ctx, sent[user].layers)
        apart = {name: _mean_distance(user, name, groups, last) for name in personal}
        near = min(apart, key=lambda name: (apart[name], int(name)))
        if apart[near] > state.threshold:
            near = str(len(personal))
            personal[near] = sent[user].layers
        groups[user] = near
    return state.replace(groups=groups, personal=personal, last=last, changed=ctx.round_no)


def _mean_distance(user: str, group: str, groups: Mapping[str, str], last: Mapping[str, Tensor]) -> float:
    members = [other for other, name in groups.items() if name == group]
    apart = cosine_distances(rows(last, [user, *members]))
    return float(apart[: len(members)].mean())


def _tree(state: Federation) -> dict[str, Any]:
    """Returns distances and merges for the round's record; the groups at any threshold follow from the merges."""
    users = by_number(state.last)
    apart = cosine_distances(rows(state.last, users))
    gap = Gap.of(apart)
    found = {"users": users, "gap": [gap.lower, gap.upper], "linkage": average_linkage(apart).tolist()}
    return found | ({"distances": apart.tolist()} if len(users) <= MAX_LISTED else {})


# ---- the three tiers


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """A device sends all layers in `delta`; a user sends its personal layers separately, in `grouped`."""
    moved, mine = uploaded_names(ctx, model), personal_tensors(ctx)
    return {"delta": moved} if ctx.seat is not None else {"delta": moved - mine, "grouped": moved & mine}


class Cloud(CloudHooks[Federation, Down, Change]):
    """Averages base layers over all users and personal layers within groups; clusters users once."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Federation:
        mine = personal_tensors(ctx)
        if ctx.params.pretrain_rounds:
            return Federation(model=model)
        users = {ctx.at(edge=edge).client_id: "0" for edge in range(ctx.n_clients)}
        return Federation(model=model, groups=users, personal={"0": only(model, mine)}, changed=1)

    def broadcast(self, ctx: Context[Params], state: Federation, edge: int, seats: Sequence[Seat]) -> Down:
        group = state.groups.get(ctx.at(edge=edge).client_id)
        personal = {} if group is None else state.personal.get(group, {})
        return Down(model=overlay(state.model, personal), group=group)

    def aggregate(self, ctx: Context[Params], state: Federation, update: Change) -> Federation:
        personal = {name: add(layers, update.grouped.get(name, {})) for name, layers in state.personal.items()}  # (9)
        after = state.replace(model=add(state.model, update.delta), personal=personal)  # (7)
        sent = complete_layers(ctx, update)
        if not sent:
            return after
        return add_users(ctx, after, sent) if after.groups else cluster_users(ctx, after, sent)

    def models(self, ctx: Context[Params], state: Federation) -> dict[str, TensorMap]:
        own = {user: overlay(state.model, state.personal[group]) for user, group in state.groups.items()}
        return {"global": state.model, **own}

    def figures(self, ctx: Context[Params], state: Federation) -> dict[str, Any]:
        if ctx.round_no != state.changed:
            return {}
        names = sorted(set(state.groups.values()), key=int)
        members = [[user for user in by_number(state.groups) if state.groups[user] == name] for name in names]
        found = {"groups": members, "threshold": state.threshold}
        return found | (_tree(state) if state.clustered == ctx.round_no else {})

    def evaluate(self, ctx: Context[Params], state: Federation, trainer: Trainer) -> dict[str, Score]:
        return {}


class Edge(EdgeHooks[User, Down, Change, Broadcast]):
    """The user: trains the whole model with its devices; keeps its personal layers until it has a group."""

    def init(self, ctx: Context[Params]) -> User:
        return User()

    def begin(self, ctx: Context[Params], state: User, broadcast: Down) -> Begin[User]:
        own = state.personal if broadcast.group is None else {}
        held = broadcast.replace(model=overlay(broadcast.model, own))  # algorithm 1, line 12; algorithm 2, line 14
        return super().begin(ctx, state.replace(group=broadcast.group), held)

    def finish(self, ctx: Context[Params], state: User) -> Finish[User, Change]:
        mine = personal_tensors(ctx)
        moved, own = delta_of(ctx, state.model, state.received), only(state.model, mine)
        sent = Change(delta=without(moved, mine))
        if state.group is not None:
            after = User(rounds=state.rounds)
            sent = sent.replace(grouped={state.group: only(moved, mine)})
        else:
            after = User(personal=own, rounds=state.rounds + (ctx.n_samples > 0))
            if ctx.n_samples and _wants_group(ctx, after.rounds):
                sent = sent.replace(users={ctx.client_id: Sent(layers=own, samples=ctx.n_samples)})
        return Finish(after, sent, {"group": state.group, "pretrained": after.rounds})

    def own_model(self, ctx: Context[Params], state: User) -> TensorMap | None:
        return state.received or None


def _wants_group(ctx: Context[Params], rounds: int) -> bool:
    """Returns whether a user asks for a group: after R1 rounds of the run, or, if it joined later, R1 of its own."""
    needed = n_pretraining(ctx.spec, ctx.params)
    return ctx.round_no == needed or (ctx.round_no > needed and rounds >= needed)


class Device(DeviceHooks[OwnBuffers, Broadcast, Change]):
    """Trains the user's whole model on its share of the samples."""

    def learned(
        self,
        ctx: Context[Params],
        state: OwnBuffers,
        message: Broadcast,
        training: Training,
        fit: Fit,
        trainer: Trainer,
    ) -> Local[OwnBuffers, Change]:
        own = OwnBuffers(buffers=own_buffers(ctx, fit.model))
        return Local(own, Change(delta=delta_of(ctx, fit.model, training.start)), fit.model, fit.trained)


PICTURES = dendrogram

ALGORITHM = Algorithm(
    name="dtpfl",
    paper="Liu, Wu, Liu: Research on Personalized Federated Learning Algorithm in Industrial Internet of Things. "
    "Journal of Chinese Computer Systems 2025",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Down,
    message=Broadcast,
    update=Change,
    cloud_state=Federation,
    edge_state=User,
    phases=phases,
    personal=personal_tensors,
    headline="mean over clients",
    needs={"client": "edge"},
    footprint=Footprint(sends=sends),
)
