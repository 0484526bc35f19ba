"""DTPFL, its learning algorithm.

Y. Liu, X. Wu, C. Liu: Research on Personalized Federated Learning Algorithm in Industrial Internet of Things. Journal
of Chinese Computer Systems (Xiaoxing Weixing Jisuanji Xitong) 46(1), 2025, 209-216, in Chinese. Equations 7 to 9,
algorithms 1 and 2. (The paper gives it no name. Its scheduler is the business of spec and edge, not of this file.)

A client is a user: an edge, whose devices and own worker train shares of its samples. A model is base layers, near the
input, and personal layers: the last P. DS_j are user j's training samples.

    pretrain, R1 rounds    base     <- sum_j |DS_j| base_j / sum_j |DS_j|                                  (7)
                           personal_j stays with user j                                              algorithm 1
    then once              v_j = last layer of user j, weight and bias in a row
                           dist(v_i, v_j) = 1 - v_i.v_j / |v_i||v_j|                                       (8)
                           average linkage, merging while the distance is at most TH            algorithm 2, line 1
    group, R2 rounds       base as in (7)
                           personal_C <- sum_{j in C} |DS_j| personal_j / sum_{j in C} |DS_j|              (9)

R1 are `pretrain_rounds` (at most the spec's `num_rounds`), R2 the rest. TH = 0 (R1 >= 1) is FedPer of R1 + R2 rounds;
TH = 2 is FedAvg from the mean of the personal layers on, and with R1 = 0 altogether.

Deviations and readings:

- The users' personal layers travel up in the round that ends the pre-training, and are averaged by (9) before the
  first group round (algorithm 2, line 2).
- TH "auto" is the paper's advice (section 3.4.2): the middle of the largest gap between the sorted distances if it is
  clear (its upper end at least twice its lower), else their 20 % quantile.
- With R1 = 0 all last layers are equal: all users are one group from the beginning.
- A user that is away when the others are clustered, or comes later, first goes through R1 rounds of pre-training of its
  own: its base layers are averaged with all, its personal layers stay. Then it joins the group to whose members' last
  layers, as they were clustered, its own has the least mean distance, and begins from that group's layers; if that is
  beyond TH it is a group of its own. (Average linkage; the paper leaves it open.)
- Personal layers travel down in every round; before the clustering they are the initial ones, from which a user
  without a state begins.
- A layer is a convolution or linear module with the batch-norm that follows it; buffers go with their layer.
- Tested is the model that a user holds before it trains on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

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
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    PerClient,
    Phase,
    Record,
    Score,
    Seat,
    Tensor,
    TensorMap,
    Trainer,
    Update,
    add,
    delta_of,
    last_layers,
    only,
    overlay,
    travelling,
    without,
)
from shared.plots.groups import dendrogram

MOST_LISTED = 64
"""Users whose distances stand in the record one by one; of more, the merges alone."""

# ---- parameters and records


class Params(Record):
    """P, R1 and TH (cosine distances are between 0 and 2)."""

    personal_layers: Annotated[int, Field(ge=1, le=1000)] = 1
    pretrain_rounds: Annotated[int, Field(ge=0, le=100_000)] = 10
    threshold: Annotated[float, Field(ge=0, le=2)] | Literal["auto"] = "auto"


class Down(Record):
    """Cloud to user: the base with its group's personal layers; without a group yet, with the initial ones."""

    model: ModelState
    group: str | None = None


class Sent(Record):
    """A user's personal layers on their way to a group, and |DS_j|."""

    layers: ModelState
    samples: Annotated[int, Field(ge=1)]


class Change(Record):
    """Up: trained minus received. From devices all of it; from users the base, and one of the others.

    Attributes:
        grouped: the personal layers' change, by group.
        users: by user, the personal layers themselves, where it is to be given a group.
    """

    delta: Annotated[ModelState, Mean(weight="samples")]
    grouped: Annotated[dict[str, ModelState], Mean(weight="samples", by_group=True)] = Field(default_factory=dict)
    users: Annotated[dict[str, Sent], PerClient()] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: the base (in `model`, with the initial personal layers), and the groups once there are any.

    Attributes:
        groups: by user, the name of its group.
        personal: by group, its personal layers.
        last: by user, the last layer by which it was grouped.
        threshold: TH, as it was found.
        clustered, changed: the rounds in which users were clustered, and in which a user was last put into a group.
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
        personal: its personal layers while it pre-trains.
        rounds: of its pre-training so far.
        group: None while it pre-trains.
    """

    personal: ModelState = Field(default_factory=dict)
    rounds: Count = 0
    group: str | None = None


def n_pretraining(spec: ExperimentSpec, params: Params) -> int:
    """R1; of a run that is no longer than that, all its rounds."""
    return min(params.pretrain_rounds, spec.num_rounds)


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """Pre-training, and what is left; rounds that are added to a run are the second phase's."""
    first = n_pretraining(spec, params)
    return Phase("pretrain", first), Phase("group", spec.num_rounds - first)


# ---- grouping


def last_layer(ctx: Context, personal: Mapping[str, Tensor]) -> Tensor:
    """v: weight and bias of the last layer in a row."""
    return torch.cat([personal[name].flatten() for name in ctx.model.layers[-1].parameters])


def rows(last: Mapping[str, Tensor], users: Sequence[str]) -> Floats:
    """The last layers of some users, (n_users, n)."""
    return np.stack([last[user].numpy().astype(np.float64) for user in users])


def by_number(users: Iterable[str]) -> list[str]:
    """Users in the order of their numbers: edge-2 before edge-10."""
    return sorted(users, key=lambda user: int(user.rpartition("-")[2]))


def mean_layers(models: Sequence[TensorMap], weights: Sequence[int]) -> TensorMap:
    """The mean by weights, in float64 and in the order given; of whole numbers (counters) the first."""
    total = max(sum(weights), 1)

    def mean(name: str) -> Tensor:
        first = models[0][name]
        if not first.is_floating_point():
            return first
        terms = [model[name].double() * (n / total) for model, n in zip(models, weights, strict=True)]
        return torch.stack(terms).sum(dim=0).to(first.dtype)

    return {name: mean(name) for name in models[0]}


def whole(ctx: Context, update: Change) -> dict[str, Sent]:
    """Who sent all of its personal layers, in the order of numbers; who did not has no group, and sends again."""
    mine = last_layers(ctx, ctx.params.personal_layers)
    users = (ctx.at(edge=edge).client_id for edge in range(ctx.n_clients))
    return {user: sent for user in users if (sent := update.users.get(user)) and sent.layers.keys() == mine}


def clustered(ctx: Context, state: Federation, sent: Mapping[str, Sent]) -> Federation:
    """The first groups."""
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


def placed(ctx: Context, state: Federation, sent: Mapping[str, Sent]) -> Federation:
    """Those who come later, one after another: each into the nearest group, or one of its own."""
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
    """What the groups rest on: from the merges follow the groups at any threshold."""
    users = by_number(state.last)
    apart = cosine_distances(rows(state.last, users))
    gap = Gap.of(apart)
    found = {"users": users, "gap": [gap.lower, gap.upper], "linkage": average_linkage(apart).tolist()}
    return found | ({"distances": apart.tolist()} if len(users) <= MOST_LISTED else {})


# ---- the three tiers


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """From a device all that travels, from a user personal layers apart from the others."""
    moved, mine = travelling(ctx, model), last_layers(ctx, ctx.params.personal_layers)
    return {"delta": moved} if ctx.seat is not None else {"delta": moved - mine, "grouped": moved & mine}


class Cloud(CloudHooks):
    """Averages base layers over all users and personal layers within groups; clusters once."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        mine = last_layers(ctx, ctx.params.personal_layers)  # refuses more than there are
        if ctx.params.pretrain_rounds:
            return Federation(model=model)
        users = {ctx.at(edge=edge).client_id: "0" for edge in range(ctx.n_clients)}
        return Federation(model=model, groups=users, personal={"0": only(model, mine)}, changed=1)

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        group = state.groups.get(ctx.at(edge=edge).client_id)
        return Down(model=overlay(state.model, state.personal.get(group, {})), group=group)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        personal = {name: add(layers, update.grouped.get(name, {})) for name, layers in state.personal.items()}  # (9)
        after = state.replace(model=add(state.model, update.delta), personal=personal)  # (7)
        sent = whole(ctx, update)
        if not sent:
            return after
        return placed(ctx, after, sent) if after.groups else clustered(ctx, after, sent)

    def models(self, ctx: Context, state: Any) -> dict[str, TensorMap]:
        own = {user: overlay(state.model, state.personal[group]) for user, group in state.groups.items()}
        return {"global": state.model, **own}

    def figures(self, ctx: Context, state: Any) -> dict[str, Any]:
        if ctx.round_no != state.changed:
            return {}
        names = sorted(set(state.groups.values()), key=int)
        members = [[user for user in by_number(state.groups) if state.groups[user] == name] for name in names]
        found = {"groups": members, "threshold": state.threshold}
        return found | (_tree(state) if state.clustered == ctx.round_no else {})

    def evaluate(self, ctx: Context, state: Any, trainer: Trainer) -> dict[str, Score]:
        return {}


class Edge(EdgeHooks):
    """The user: trains the whole model with its devices; keeps its personal layers until it has a group."""

    def init(self, ctx: Context) -> Any:
        return User()

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        own = state.personal if broadcast.group is None else {}
        held = Broadcast(model=overlay(broadcast.model, own))  # algorithm 1, line 12; algorithm 2, line 14
        return super().begin(ctx, state.replace(group=broadcast.group), held)

    def finish(self, ctx: Context, state: Any) -> Finish:
        mine = last_layers(ctx, ctx.params.personal_layers)
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

    def own_model(self, ctx: Context, state: Any) -> TensorMap | None:
        return state.received or None


def _wants_group(ctx: Context, rounds: int) -> bool:
    """With all who are there in the last round of pre-training; who was not there, after as many rounds of its own."""
    needed = n_pretraining(ctx.spec, ctx.params)
    return ctx.round_no == needed or (ctx.round_no > needed and rounds >= needed)


class Device(DeviceHooks):
    """Trains its share of the user's whole model."""

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        local = super().local_update(ctx, state, message, trainer)
        return replace(local, update=Change(delta=cast("Update", local.update).delta))


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
    headline="mean over clients",
    needs={"client": "edge"},
    footprint=Footprint(sends=sends),
)
