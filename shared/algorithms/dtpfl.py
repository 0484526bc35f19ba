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

R1 are `pretrain_rounds`, R2 the rest of the spec's `num_rounds`. TH = 0 (R1 >= 1) is FedPer of R1 + R2 rounds; TH = 2
is FedAvg from the mean of the personal layers on, and with R1 = 0 altogether.

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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from pydantic import Field

from shared.algorithms._hooks import (
    Advance,
    Algorithm,
    Begin,
    Bench,
    Broadcast,
    CloudHooks,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    GlobalModel,
    Local,
    Phase,
    Update,
    delta_of,
    last_layers,
)
from shared.clusters import Floats, Gap, average_linkage, cosine_distances, groups_at
from shared.context import Ctx
from shared.messages import Outcome, Work
from shared.population import Seat
from shared.records import Count, Each, Mean, ModelState, Record, Score, Tensor, TensorMap
from shared.spec import ExperimentSpec
from shared.tensors import add, only, overlay, without

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


class Change(Record):
    """Up: trained minus received. From devices all of it; from users the base, and what their state asks for.

    Attributes:
        grouped: the personal layers' change, by group.
        personal: by user, the personal layers themselves, where it is to be grouped.
        samples: of these users, |DS_j|.
    """

    delta: Annotated[ModelState, Mean(weight="samples")]
    grouped: Annotated[dict[str, ModelState], Mean(weight="samples", by_group=True)] = Field(default_factory=dict)
    personal: Annotated[dict[str, ModelState], Each()] = Field(default_factory=dict)
    samples: Annotated[dict[str, Count], Each()] = Field(default_factory=dict)


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
        samples: those that it trains on in this round.
        formed: the last round in which it trained.
    """

    personal: ModelState = Field(default_factory=dict)
    rounds: Count = 0
    group: str | None = None
    samples: Count = 0
    formed: Count = 0


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """Pre-training, and all rounds after it."""
    group = Phase("group", max(spec.num_rounds - params.pretrain_rounds, 1))
    return (Phase("pretrain", params.pretrain_rounds), group)


# ---- grouping


def last_layer(ctx: Ctx, personal: Mapping[str, Tensor]) -> Tensor:
    """v: weight and bias of the last layer in a row."""
    return torch.cat([personal[name].flatten() for name in ctx.layers[-1].parameters])


def rows(last: Mapping[str, Tensor], users: Sequence[str]) -> Floats:
    """The last layers of some users, (n_users, n)."""
    return np.stack([last[user].numpy().astype(np.float64) for user in users])


def by_number(users: Mapping[str, Any]) -> list[str]:
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


def clustered(ctx: Ctx, state: Federation, update: Change) -> Federation:
    """The groups of those who sent their personal layers."""
    users = by_number(update.personal)
    last = {user: last_layer(ctx, update.personal[user]) for user in users}
    apart = cosine_distances(rows(last, users))  # (8)
    threshold = Gap.of(apart).threshold if ctx.params.threshold == "auto" else ctx.params.threshold
    found = groups_at(average_linkage(apart), threshold)  # algorithm 2, line 1
    names = {users[i]: str(number) for number, members in enumerate(found) for i in members}
    personal = {}
    for number, members in enumerate(found):
        layers = [update.personal[users[i]] for i in members]
        personal[str(number)] = mean_layers(layers, [update.samples[users[i]] for i in members])  # (9)
    now = {"clustered": ctx.round_no, "changed": ctx.round_no}
    return state.but(groups=names, personal=personal, last=last, threshold=threshold, **now)


def placed(ctx: Ctx, state: Federation, update: Change) -> Federation:
    """Those who come later, one after another: each into the nearest group, or one of its own."""
    groups, personal, last = dict(state.groups), dict(state.personal), dict(state.last)
    for user in by_number(update.personal):
        last[user] = last_layer(ctx, update.personal[user])
        apart = {name: _mean_distance(user, name, groups, last) for name in dict.fromkeys(groups.values())}
        near = min(apart, key=lambda name: (apart[name], int(name)))
        if apart[near] > state.threshold:
            near = str(len(personal))
            personal[near] = update.personal[user]
        groups[user] = near
    return state.but(groups=groups, personal=personal, last=last, changed=ctx.round_no)


def _mean_distance(user: str, group: str, groups: Mapping[str, str], last: Mapping[str, Tensor]) -> float:
    members = [other for other, name in groups.items() if name == group]
    apart = [cosine_distances(rows(last, [user, other]))[0] for other in members]
    return float(np.mean(apart))


def _tree(state: Federation) -> dict[str, Any]:
    """What the groups rest on: from the merges they follow at any threshold."""
    users = by_number(state.last)
    apart = cosine_distances(rows(state.last, users))
    gap = Gap.of(apart)
    found = {"users": users, "gap": [gap.lower, gap.upper], "linkage": average_linkage(apart).tolist()}
    return found | ({"distances": apart.tolist()} if len(users) <= MOST_LISTED else {})


# ---- the three tiers


class Cloud(CloudHooks):
    """Averages base layers over all users and personal layers within groups; clusters once."""

    def init(self, ctx: Ctx, model: TensorMap) -> Any:
        mine = last_layers(ctx, ctx.params.personal_layers)  # refuses more than there are
        if ctx.params.pretrain_rounds:
            return Federation(model=model)
        users = {ctx.at(edge=edge).client_id: "0" for edge in range(ctx.n_clients)}
        return Federation(model=model, groups=users, personal={"0": only(model, mine)})

    def broadcast(self, ctx: Ctx, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        group = state.groups.get(ctx.at(edge=edge).client_id)
        return Down(model=overlay(state.model, state.personal.get(group, {})), group=group)

    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        personal = {name: add(layers, update.grouped.get(name, {})) for name, layers in state.personal.items()}  # (9)
        after = state.but(model=add(state.model, update.delta), personal=personal)  # (7)
        if not update.personal:
            return after
        return placed(ctx, after, update) if after.groups else clustered(ctx, after, update)

    def models(self, ctx: Ctx, state: Any) -> dict[str, TensorMap]:
        own = {user: overlay(state.model, state.personal[group]) for user, group in state.groups.items()}
        return {"global": state.model, **own}

    def figures(self, ctx: Ctx, state: Any) -> dict[str, Any]:
        if not state.groups or ctx.round_no != max(state.changed, 1):
            return {}
        names = sorted(set(state.groups.values()), key=int)
        members = [[user for user in by_number(state.groups) if state.groups[user] == name] for name in names]
        found = {"groups": members, "threshold": state.threshold}
        return found | (_tree(state) if state.clustered == ctx.round_no else {})

    def evaluate(self, ctx: Ctx, state: Any, bench: Bench) -> dict[str, Score]:
        return {}


class Edge(EdgeHooks):
    """The user: trains the whole model with its devices; keeps its personal layers until it has a group."""

    def init(self, ctx: Ctx) -> Any:
        return User()

    def begin(self, ctx: Ctx, state: Any, broadcast: Any) -> Begin:
        own = state.personal if broadcast.group is None else {}
        held = Broadcast(model=overlay(broadcast.model, own))  # algorithm 1, line 12; algorithm 2, line 14
        return super().begin(ctx, state.but(group=broadcast.group, samples=0), held)

    def schedule(self, ctx: Ctx, state: Any, seats: Sequence[Seat]) -> dict[int, Work]:
        works = super().schedule(ctx, state, seats)
        behind = state.group is None and ctx.phase == "group"
        return {seat: work.but(phase="pretrain") for seat, work in works.items()} if behind else works

    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        return super().aggregate(ctx, state.but(formed=ctx.round_no), update)

    def advance(self, ctx: Ctx, state: Any, works: Mapping[int, Work], outcomes: Sequence[Outcome[Any]]) -> Advance:
        done = [outcome.n_samples for outcome in outcomes if outcome.failure is None and not ctx.edge_round]
        return super().advance(ctx, state.but(samples=state.samples + sum(done)), works, outcomes)

    def finish(self, ctx: Ctx, state: Any) -> Finish:
        figures = {"group": state.group, "pretrained": state.rounds}
        if state.formed != ctx.round_no:  # nobody answered
            return Finish(state.but(start={}, received={}, model={}), figures=figures)
        mine = last_layers(ctx, ctx.params.personal_layers)
        moved, own = delta_of(ctx, state.model, state.received), only(state.model, mine)
        base = without(moved, mine)
        if state.group is not None:
            between = User(rounds=state.rounds, group=state.group, formed=state.formed)
            return Finish(between, Change(delta=base, grouped={state.group: only(moved, mine)}), figures)
        rounds, needed = state.rounds + 1, ctx.params.pretrain_rounds
        due = ctx.round_no == needed or (ctx.round_no > needed and rounds >= needed)
        sent, user = Change(delta=base), ctx.client_id
        if due:
            sent = Change(delta=base, personal={user: own}, samples={user: state.samples})
        return Finish(User(personal=own, rounds=rounds, formed=state.formed), sent, figures | {"pretrained": rounds})

    def evaluate(self, ctx: Ctx, state: Any, bench: Bench) -> tuple[Score | None, Score | None]:
        held = bench.test(state.received)
        return held, held


class Device(DeviceHooks):
    """Trains its share of the user's whole model."""

    def local_update(self, ctx: Ctx, state: Any, message: Any, bench: Bench) -> Local:
        local = super().local_update(ctx, state, message, bench)
        return replace(local, update=Change(delta=cast("Update", local.update).delta))


ALGORITHM = Algorithm(
    name="dtpfl",
    paper=(
        "Liu, Wu, Liu: Research on Personalized Federated Learning Algorithm in Industrial Internet of Things. "
        "Journal of Chinese Computer Systems 2025"
    ),
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
)
