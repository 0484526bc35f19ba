"""BOFL.

G. Guo, H. Tian, T. Wang, W. Jia: Efficient Federated Learning Scheme Based on Background Optimization. Computer Science
(Jisuanji Kexue) 49(12), 2022, 40-45, in Chinese; doi 10.11896/jsjkx.220600237. Algorithms 1 and 2, equations 2 to 6.

An edge and its devices are an environment. In every round, in each environment:

    top    = the device of the highest training accuracy, the leader                              (2), (6)
    b(w)   = 1 where w > 0, else 0                                                                algorithm 1, 1-3
    d(v,w) = number of positions in which b(v) and b(w) differ                                    (5)
    sigma  = d(w_top, w), where w is the global model from which the devices started, or w_0      algorithm 2, 8
    rho_i  = d(w_i, w_top)
    A: rho_i inside the steady margin phi: device i uploads                                       (3)
    B: inside the swing margin omega: it uploads with probability 0.5                             (4)
    C: outside: it is refused; after delta refusals it is retired
    edge   = mean of the uploaded models; class C devices adjust to it                            algorithm 2, 21-23
    w     <- w + mean over the edges' updates                                                     algorithm 2, 24

The leader always uploads. With margins so wide that all devices are class A, and weighting "samples", it is FedAvg;
with one environment and equal sample counts also with weighting "one".

Deviations and readings:

- Algorithm 2 picks the leader before the local updates. Here devices train first. Training accuracy is counted over all
  batches of a visit, each before its step. Of equal accuracies the lower training loss wins, then the lower number.
- sigma_against "round" takes sigma against the round's own global model (step 3 of the text), "initial" against w_0,
  the model with which the run begins (algorithm 2, 8). The cloud keeps the signs of w_0 and sends them in each round.
- (5), as extracted, sums I(u_k = v_k); a distance counts differences.
- The text writes rho < phi sigma, but calls phi the share by which sigma is expanded: margin "expanded" reads
  rho <= (1 + phi) sigma, "literal" rho <= phi sigma; likewise for omega. Bounds are inclusive, so that with sigma = 0 a
  device equal to its leader is class A.
- compare "parameters" (algorithm 1) compares trainable parameters, not buffers. "update" (the text speaks of gradient
  vectors) compares trained minus received, with sigma against the cloud's last update; in round 1, which has none, all
  devices are class A.
- Algorithm 2, 24 adds edge models to the global model, which would grow without bound. Here updates (trained minus
  global) are averaged, at both tiers. |ES| does not count environments without uploads. Means are plain as in the paper
  (weighting "one"), or by samples.
- The paper leaves open how class C adjusts. adjust "start": a class C device starts its next round from the edge model
  instead of the global one; its update is still trained minus global. "train" (algorithm 2, 22-23): it trains once
  more, from the edge model, and keeps the result as its own model, which is not sent.
- Refusals are counted in total, or since the last upload ("consecutive"). A class B device that loses the draw counts
  as refused with count_b.
- Before the decision only a report is sent: accuracy, loss, and signs packed eight to a byte.
- The optimiser is not named: Adam, whose usual rate is the paper's 0.001, or the spec's SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator

from shared.core.records import LEFT_OUT
from shared.federation.hooks import (
    Adam,
    Admission,
    Advance,
    Algorithm,
    Begin,
    Broadcast,
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
    Mean,
    ModelState,
    Outcome,
    OwnBuffers,
    PerClient,
    Record,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    Verdict,
    add,
    delta_of,
    n_bytes,
    overlay,
    own_buffers,
    starting_model,
    uploaded_names,
)
from shared.plots.algorithm_pictures import labels_by_round

# ---- parameters and records


class Params(Record):
    """The paper's parameters, with its values as defaults, and the readings above.

    Attributes:
        phi: the steady margin.
        omega: the swing margin, at least phi.
        delta: number of refusals after which a device is retired.
        margin, compare, sigma_against, weighting, adjust, refusals, count_b: the reading of the paper, see above.
        optimiser: of the devices; both take the spec's `lr` and `weight_decay`, and SGD its `momentum`.
    """

    phi: Annotated[float, Field(ge=0, le=1e9)] = 0.2
    omega: Annotated[float, Field(ge=0, le=1e9)] = 0.4
    delta: Annotated[int, Field(ge=1, le=10**9)] = 8
    margin: Literal["expanded", "literal"] = "expanded"
    compare: Literal["parameters", "update"] = "parameters"
    sigma_against: Literal["round", "initial"] = "round"
    weighting: Literal["one", "samples"] = "one"
    adjust: Literal["start", "train"] = "start"
    refusals: Literal["total", "consecutive"] = "total"
    count_b: bool = False
    optimiser: Literal["adam", "sgd"] = "adam"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.sigma_against == "initial" and self.compare == "update":
            raise ValueError("sigma_against initial is a distance of models: it needs compare: parameters")
        if self.omega < self.phi:
            raise ValueError(f"omega {self.omega:g} is below phi {self.phi:g}, but the swing margin is the outer one")
        return self


class Down(Broadcast):
    """Cloud to edge: the model, the refusals of its seats so far, and the signs of `Federation`."""

    refusals: dict[int, Count] = Field(default_factory=dict)
    moved: Tensor | None = None
    first: Annotated[Tensor | None, LEFT_OUT] = None


class Message(Broadcast):
    """Edge to device: the model, and for a class C device the edge model from which it starts instead."""

    edge_model: ModelState = Field(default_factory=dict)


class Report(Record):
    """Sent before an upload: accuracy and loss in training, and signs packed eight to a byte."""

    accuracy: Annotated[float, Field(ge=0, le=1)]
    loss: float
    signs: Tensor


class Change(Record):
    """Up: trained minus received, in the field for the spec's `weighting`; from an edge also its devices' refusals."""

    plain: Annotated[ModelState | None, Mean(weight="one")] = None
    by_samples: Annotated[ModelState | None, Mean(weight="samples")] = None
    refusals: Annotated[dict[str, Count], PerClient()] = Field(default_factory=dict)

    @property
    def delta(self) -> TensorMap:
        """Trained minus received; empty if no device uploaded."""
        return self.plain or self.by_samples or {}


class Federation(GlobalModel):
    """The cloud's state.

    Attributes:
        refusals: by client, so that they count at whichever edge a device is placed.
        moved: the signs of the last update, with compare "update".
        first: the signs of the model with which the run began, with sigma_against "initial".
    """

    refusals: dict[str, Count] = Field(default_factory=dict)
    moved: Tensor | None = None
    first: Annotated[Tensor | None, LEFT_OUT] = None


class Environment(EdgeModel):
    """An edge's state.

    Attributes:
        refusals: number of refusals by seat.
        refused: the seats that were class C in their last report to this edge.
        edge_model: the model from which these seats start their next round.
        formed: the last round in which the edge formed a model.
        moved, first: the signs that the cloud sent, see `Federation`.
    """

    refusals: dict[int, Count] = Field(default_factory=dict)
    refused: tuple[int, ...] = ()
    edge_model: ModelState = Field(default_factory=dict)
    formed: int = 0
    moved: Tensor | None = None
    first: Annotated[Tensor | None, LEFT_OUT] = None


class Own(OwnBuffers):
    """A device's state: the model that a class C device trained from the edge model (adjust "train")."""

    own: ModelState = Field(default_factory=dict)


# ---- signs, distances, classes


def signs(ctx: Context[Params], model: Mapping[str, Tensor]) -> Tensor:
    """Returns b(w) of all trainable parameters, names sorted, packed eight to a byte: uint8, (ceil(n / 8),)."""
    names = sorted(ctx.model.trainable_in(model))
    bits = np.concatenate([(model[name] > 0).flatten().cpu().numpy() for name in names])  # algorithm 1, 1-3
    return torch.from_numpy(np.packbits(bits))


def hamming(a: Tensor, b: Tensor) -> int:
    """Returns d: the number of positions in which two packed rows of signs of one length differ."""
    return int(np.bitwise_count(a.numpy() ^ b.numpy()).sum())  # (5)


def bounds(params: Params, sigma: int) -> tuple[float, float]:
    """Returns the largest distances of class A and of class B, rounded so that 1.13 * 100 is 113 exactly."""
    whole = 1.0 if params.margin == "expanded" else 0.0
    return round((whole + params.phi) * sigma, 6), round((whole + params.omega) * sigma, 6)


def class_of(params: Params, rho: int, sigma: int | None) -> Literal["A", "B", "C"]:
    """Returns the class of a device at distance rho from its leader; without a sigma all are class A."""
    steady, swing = (np.inf, np.inf) if sigma is None else bounds(params, sigma)
    return "A" if rho <= steady else "B" if rho <= swing else "C"  # (3), (4)


def refusals_after(params: Params, before: int, label: str, *, upload: bool) -> int:
    """Returns a device's number of refusals after a verdict."""
    if upload:
        return 0 if params.refusals == "consecutive" else before
    return before + 1 if label == "C" or params.count_b else before


def change(ctx: Context[Params], delta: TensorMap | None, refusals: Mapping[str, int] | None = None) -> Change:
    """Returns an update whose `delta` is in the field for the spec's weighting."""
    field = "plain" if ctx.params.weighting == "one" else "by_samples"
    return Change.model_validate({field: delta, "refusals": dict(refusals or {})})


# ---- the three tiers


class Cloud(CloudHooks[Federation, Down, Change]):
    """Adds the mean of the edges' updates to its model."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Federation:
        return Federation(model=model, first=signs(ctx, model) if ctx.params.sigma_against == "initial" else None)

    def broadcast(self, ctx: Context[Params], state: Federation, edge: int, seats: Sequence[Seat]) -> Down:
        refusals = {seat.number: state.refusals.get(ctx.at(seat=seat.number).client_id, 0) for seat in seats}
        return Down(model=state.model, refusals=refusals, moved=state.moved, first=state.first)

    def aggregate(self, ctx: Context[Params], state: Federation, update: Change) -> Federation:
        moved = signs(ctx, update.delta) if update.delta and ctx.params.compare == "update" else state.moved
        model = add(state.model, update.delta)  # algorithm 2, 24
        return state.replace(model=model, refusals=state.refusals | update.refusals, moved=moved)


class Edge(EdgeHooks[Environment, Down, Change, Message, Report]):
    """Finds the leader, admits by distance to it, sends the edge model to class C, retires often refused devices."""

    def init(self, ctx: Context[Params]) -> Environment:
        return Environment()

    def begin(self, ctx: Context[Params], state: Environment, broadcast: Down) -> Begin[Environment]:
        here = tuple(seat for seat in state.refused if seat in broadcast.refusals)
        known = state.replace(refusals=broadcast.refusals, refused=here, moved=broadcast.moved, first=broadcast.first)
        return super().begin(ctx, known, broadcast)

    def dispatch(self, ctx: Context[Params], state: Environment, seat: Seat) -> Message:
        if ctx.wave:
            return Message(model=state.model)  # algorithm 2, 22-23
        adjusts = seat.number in state.refused and state.formed == ctx.round_no - 1
        return Message(model=state.start, edge_model=state.edge_model if adjusts else {})

    def admit(self, ctx: Context[Params], state: Environment, reports: Mapping[int, Report]) -> Admission[Environment]:
        own = signs(ctx, state.start)
        kind = own.dtype, own.shape
        foreign = {seat for seat, report in reports.items() if (report.signs.dtype, report.signs.shape) != kind}
        verdicts = {seat: Verdict(upload=False, reason="signs of another model") for seat in sorted(foreign)}
        reports = {seat: report for seat, report in reports.items() if seat not in foreign}
        if not reports:
            return Admission(state, verdicts)
        top = min(reports, key=lambda seat: (-reports[seat].accuracy, reports[seat].loss, seat))  # (2), (6)
        origin = state.moved if ctx.params.compare == "update" else own if state.first is None else state.first
        sigma = None if origin is None else hamming(reports[top].signs, origin)  # algorithm 2, 8
        for seat in sorted(reports):
            rho = hamming(reports[seat].signs, reports[top].signs)
            label = "leader" if seat == top else class_of(ctx.params, rho, sigma)
            verdicts[seat] = self._verdict(ctx.at(seat=seat), label, rho, sigma, state.refusals.get(seat, 0))
        counts = {seat: verdicts[seat].figures["refusals"] for seat in reports}
        outside = {seat for seat, verdict in verdicts.items() if verdict.label == "C"}
        refused = tuple(sorted((set(state.refused) - reports.keys()) | outside))
        return Admission(state.replace(refusals=state.refusals | counts, refused=refused), verdicts)

    def _verdict(self, ctx: Context[Params], label: str, rho: int, sigma: int | None, before: int) -> Verdict:
        """Returns the decision on a seat's update, and its reason."""
        upload, reason = label != "C", None
        if label == "B" and ctx.numpy_rng("swing").random() >= 0.5:  # (4)
            upload, reason = False, "class B lost the draw"
        elif label == "C":
            reason = f"rho {rho} is above {bounds(ctx.params, sigma or 0)[1]:g}"
        count = refusals_after(ctx.params, before, label, upload=upload)
        figures = {"rho": rho, "sigma": sigma, "refusals": count}
        return Verdict(upload=upload, label=label, reason=reason, figures=figures)

    def aggregate(self, ctx: Context[Params], state: Environment, update: Change) -> Environment:
        return state.replace(model=add(state.start, update.delta), formed=ctx.round_no)  # algorithm 2, 21

    def advance(
        self, ctx: Context[Params], state: Environment, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Report]]
    ) -> Advance[Environment]:
        reported = [outcome.seat for outcome in outcomes if outcome.report is not None]
        counts = {seat: state.refusals.get(seat, 0) for seat in reported}
        how = " in a row" if ctx.params.refusals == "consecutive" else ""
        out = {seat: f"refused {n} times{how}" for seat, n in counts.items() if n >= ctx.params.delta}
        again = [seat for seat in reported if seat in state.refused and seat not in out]
        if ctx.params.adjust == "train" and state.formed == ctx.round_no and again:
            return Advance(state, revisit=again, retire=out)
        return replace(super().advance(ctx, state, tasks, outcomes), retire=out)

    def finish(self, ctx: Context[Params], state: Environment) -> Finish[Environment, Change]:
        formed = state.formed == ctx.round_no
        delta = delta_of(ctx, state.model, state.received) if formed else None
        counts = {ctx.at(seat=seat).client_id: n for seat, n in sorted(state.refusals.items())}
        waits = formed and state.refused and ctx.params.adjust == "start"
        between = Environment(refused=state.refused, formed=state.formed, edge_model=state.model if waits else {})
        return Finish(between, change(ctx, delta, counts))


class Device(DeviceHooks[Own, Message, Change, Report]):
    """Trains, reports and waits for the verdict."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def local_update(self, ctx: Context[Params], state: Own, message: Message, trainer: Trainer) -> Local[Own, Change]:
        received = starting_model(state, message)
        start = overlay(message.edge_model, state.buffers) if message.edge_model else received
        step = Adam(ctx.lr, ctx.spec.weight_decay) if ctx.params.optimiser == "adam" else None
        fit = trainer.fit(ctx, start, step=step)
        buffers = own_buffers(ctx, fit.model)
        adjusts = message.model if ctx.wave else message.edge_model
        figures = {"accuracy": fit.trained.n_correct / max(fit.trained.n_predictions, 1), "loss": fit.trained.loss}
        figures |= {"edge_model_bytes": n_bytes(adjusts)} if adjusts else {}
        if ctx.wave:
            return Local(Own(buffers=buffers, own=fit.model), None, fit.model, fit.trained, figures=figures)
        update = change(ctx, delta_of(ctx, fit.model, received))
        return Local(Own(buffers=buffers), update, fit.model, fit.trained, figures=figures)

    def report(self, ctx: Context[Params], state: Own, local: Local[Own, Change], message: Message) -> Report:
        compared = cast("Change", local.update).delta if ctx.params.compare == "update" else local.model or {}
        return Report(accuracy=local.figures["accuracy"], loss=local.figures["loss"], signs=signs(ctx, compared))

    def personalise(
        self, ctx: Context[Params], state: Own, message: Message, local: Local[Own, Change] | None, trainer: Trainer
    ) -> TensorMap | None:
        return local.model if local else state.own or None


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """All that travels, in the field that is averaged as `weighting` says."""
    return {"plain" if ctx.params.weighting == "one" else "by_samples": uploaded_names(ctx, model)}


PICTURES = labels_by_round("classes", "BOFL: classes of devices by round", ("leader", "A", "B", "C"))

ALGORITHM = Algorithm(
    name="bofl",
    paper="Guo et al.: Efficient Federated Learning Scheme Based on Background Optimization. Computer Science 2022",
    params=Params,
    targets=("classes", "tokens"),
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Down,
    message=Message,
    update=Change,
    report=Report,
    cloud_state=Federation,
    edge_state=Environment,
    device_state=Own,
    needs={"client": "device", "optimizer": "sgd"},  # the devices' is one of its own parameters
    footprint=Footprint(sends=sends),
)
