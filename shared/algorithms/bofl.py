"""BOFL.

G. Guo, H. Tian, T. Wang, W. Jia: Efficient Federated Learning Scheme Based on Background Optimization. Computer Science
(Jisuanji Kexue) 49(12), 2022, 40-45, in Chinese; doi 10.11896/jsjkx.220600237. Algorithms 1 and 2, equations 2 to 6.

An edge and its devices are an environment. In every round, in each environment:

    top    = the device of the highest training accuracy, the leader                              (2), (6)
    b(w)   = 1 where w > 0, else 0                                                                algorithm 1, 1-3
    d(v,w) = number of positions in which b(v) and b(w) differ                                    (5)
    sigma  = d(w_top, w), where w is the global model that the devices began from                 algorithm 2, 8
    rho_i  = d(w_i, w_top)
    A: rho_i inside the steady margin phi: device i uploads                                       (3)
    B: inside the swing margin omega: it uploads with probability 0.5                             (4)
    C: outside: it is refused; delta refusals retire it
    edge   = mean of what was uploaded; class C devices adjust to it                              algorithm 2, 21-23
    w     <- w + mean over the edges                                                              algorithm 2, 24

The leader always uploads. With margins so wide that all are class A, and weighting "samples", it is FedAvg; in one
environment of equal counts also with "one".

Deviations and readings:

- Algorithm 2 picks the leader, and sigma against the first model w_0, before the local updates; here devices train
  first, and sigma is taken against the round's own model (step 3 of the text). Training accuracy is that counted while
  training. Equal accuracies: the lower training loss, then the lower number.
- The extracted (5) sums I(u_k = v_k); a distance counts what differs.
- The text writes rho < phi sigma, but calls phi the share by which sigma is expanded: margin "expanded" reads
  rho <= (1 + phi) sigma, "literal" rho <= phi sigma; omega likewise. Bounds are inclusive: where sigma is 0, a device
  equal to its leader is class A.
- compare "parameters" (algorithm 1): trainable parameters, no buffers. "update" (the text speaks of gradient vectors):
  trained minus received, sigma against the cloud's last update; in round 1, where there is none, all are class A.
- Algorithm 2, 24 adds edge models to the global model, which would grow without bound: updates (trained minus global)
  are averaged, at both tiers. An environment from which nothing came does not count in |ES|. Means are plain as in the
  paper (weighting "one"), or by samples.
- How class C adjusts is left open. adjust "start": it starts its next round from the edge model in place of the global
  one; its update is still trained minus global. "train" (algorithm 2, 22-23): it trains once more, from the edge model,
  and keeps the result as its own model; nothing of that travels.
- Refusals are counted in total, or since the last upload ("consecutive"); a class B device's lost draw: with count_b.
- Before the decision only a report travels: accuracy, loss, and signs packed eight to a byte.
- The optimiser is not named: Adam, whose usual rate is the paper's 0.001, or the spec's SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator

from shared.federation.hooks import (
    Adam,
    Admission,
    Advance,
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
    Update,
    Verdict,
    add,
    default_local,
    delta_of,
    n_bytes,
    overlay,
    starting_model,
    travelling,
)
from shared.plots.declared import labels_by_round

# ---- parameters and records


class Params(Record):
    """Margins phi and omega, delta; which reading of the paper (see above); the optimiser of the devices.

    Both optimisers take the spec's `lr` and `weight_decay`; `momentum` is SGD's alone.
    """

    phi: Annotated[float, Field(ge=0, le=1e9)] = 0.2
    omega: Annotated[float, Field(ge=0, le=1e9)] = 0.4
    delta: Annotated[int, Field(ge=1, le=10**9)] = 8
    margin: Literal["expanded", "literal"] = "expanded"
    compare: Literal["parameters", "update"] = "parameters"
    weighting: Literal["one", "samples"] = "one"
    adjust: Literal["start", "train"] = "start"
    refusals: Literal["total", "consecutive"] = "total"
    count_b: bool = False
    optimiser: Literal["adam", "sgd"] = "adam"

    @model_validator(mode="after")
    def _swing_outside_steady(self) -> Self:
        if self.omega < self.phi:
            raise ValueError(f"omega {self.omega:g} is below phi {self.phi:g}, but the swing margin is the outer one")
        return self


class Down(Record):
    """Cloud to edge: the model, the refusals of its seats so far, the last update's signs if updates are compared."""

    model: ModelState
    refusals: dict[int, Count] = Field(default_factory=dict)
    moved: Tensor | None = None


class Message(Record):
    """Edge to device: the model, and to class C the edge model from which it starts instead."""

    model: ModelState
    edge_model: ModelState = Field(default_factory=dict)


class Report(Record):
    """Before an upload: accuracy and loss while training, and signs, eight to a byte."""

    accuracy: Annotated[float, Field(ge=0, le=1)]
    loss: float
    signs: Tensor


class Change(Record):
    """Up: trained minus received, in the field that is averaged as `weighting` says; an edge adds refusals by seat."""

    plain: Annotated[ModelState | None, Mean(weight="one")] = None
    by_samples: Annotated[ModelState | None, Mean(weight="samples")] = None
    refusals: Annotated[dict[str, Count], PerClient()] = Field(default_factory=dict)

    @property
    def delta(self) -> TensorMap:
        """Trained minus received; empty where nobody uploaded."""
        return self.plain or self.by_samples or {}


class Federation(GlobalModel):
    """The cloud's state: also the refusals of all seats, which so count wherever a seat visits, and `Down.moved`."""

    refusals: dict[str, Count] = Field(default_factory=dict)
    moved: Tensor | None = None


class Environment(EdgeModel):
    """An edge's state.

    Attributes:
        refusals: by seat, so far.
        refused: the seats that were class C when they last reported here.
        edge_model: from which these start their next round.
        formed: the last round in which the edge formed a model.
    """

    refusals: dict[int, Count] = Field(default_factory=dict)
    refused: tuple[int, ...] = ()
    edge_model: ModelState = Field(default_factory=dict)
    formed: int = 0
    moved: Tensor | None = None


class Own(OwnBuffers):
    """A device's state: what a class C device made of the edge model (adjust "train")."""

    own: ModelState = Field(default_factory=dict)


# ---- signs, distances, classes


def signs(ctx: Context, model: Mapping[str, Tensor]) -> Tensor:
    """b(w) of all parameters, names sorted, eight to a byte: uint8, (ceil(n / 8),)."""
    names = sorted(model.keys() - ctx.model.buffer_names)
    bits = np.concatenate([(model[name] > 0).flatten().cpu().numpy() for name in names])  # algorithm 1, 1-3
    return torch.from_numpy(np.packbits(bits))


def hamming(a: Tensor, b: Tensor) -> int:
    """d: in how many positions two packed rows of signs of one length differ."""
    return int(np.bitwise_count(a.numpy() ^ b.numpy()).sum())  # (5)


def bounds(params: Params, sigma: int) -> tuple[float, float]:
    """The largest distances of class A and class B; 1.13 * 100 is 113, whatever floating point makes of it."""
    whole = 1.0 if params.margin == "expanded" else 0.0
    return round((whole + params.phi) * sigma, 6), round((whole + params.omega) * sigma, 6)


def class_of(params: Params, rho: int, sigma: int | None) -> Literal["A", "B", "C"]:
    """The class of a device at a distance from its leader; without a sigma all are class A."""
    steady, swing = (np.inf, np.inf) if sigma is None else bounds(params, sigma)
    return "A" if rho <= steady else "B" if rho <= swing else "C"  # (3), (4)


def refusals_after(params: Params, before: int, label: str, *, upload: bool) -> int:
    """The refusals of a device after a verdict."""
    if upload:
        return 0 if params.refusals == "consecutive" else before
    return before + 1 if label == "C" or params.count_b else before


def change(ctx: Context, delta: TensorMap | None, refusals: Mapping[str, int] | None = None) -> Change:
    """An update in the field of the spec's weighting."""
    field = "plain" if ctx.params.weighting == "one" else "by_samples"
    return Change.model_validate({field: delta, "refusals": dict(refusals or {})})


# ---- the three tiers


class Cloud(CloudHooks):
    """Adds the mean of the edges' updates to its model."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        return Federation(model=model)

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        there = {seat.number: state.refusals.get(ctx.at(seat=seat.number).client_id, 0) for seat in seats}
        return Down(model=state.model, refusals=there, moved=state.moved)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        moved = signs(ctx, update.delta) if update.delta and ctx.params.compare == "update" else state.moved
        model = add(state.model, update.delta)  # algorithm 2, 24
        return Federation(model=model, refusals=state.refusals | update.refusals, moved=moved)


class Edge(EdgeHooks):
    """Finds the leader, admits by distance to it, hands the edge model to class C, retires who is refused too often."""

    def init(self, ctx: Context) -> Any:
        return Environment()

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        here = tuple(seat for seat in state.refused if seat in broadcast.refusals)
        known = state.replace(refusals=broadcast.refusals, refused=here, moved=broadcast.moved)
        return super().begin(ctx, known, broadcast)

    def dispatch(self, ctx: Context, state: Any, seat: Seat) -> Any:
        if ctx.wave:
            return Message(model=state.model)  # algorithm 2, 22-23
        adjusts = seat.number in state.refused and state.formed == ctx.round_no - 1
        return Message(model=state.start, edge_model=state.edge_model if adjusts else {})

    def admit(self, ctx: Context, state: Any, reports: Mapping[int, Any]) -> Admission:
        own = signs(ctx, state.start)
        kind = own.dtype, own.shape
        strange = {seat for seat, report in reports.items() if (report.signs.dtype, report.signs.shape) != kind}
        verdicts = {seat: Verdict(upload=False, reason="signs of another model") for seat in sorted(strange)}
        reports = {seat: report for seat, report in reports.items() if seat not in strange}
        if not reports:
            return Admission(state, verdicts)
        top = min(reports, key=lambda seat: (-reports[seat].accuracy, reports[seat].loss, seat))  # (2), (6)
        origin = state.moved if ctx.params.compare == "update" else own
        sigma = None if origin is None else hamming(reports[top].signs, origin)  # algorithm 2, 8
        for seat in sorted(reports):
            rho = hamming(reports[seat].signs, reports[top].signs)
            label = "leader" if seat == top else class_of(ctx.params, rho, sigma)
            verdicts[seat] = self._verdict(ctx.at(seat=seat), label, rho, sigma, state.refusals.get(seat, 0))
        counts = {seat: verdicts[seat].figures["refusals"] for seat in reports}
        outside = {seat for seat, verdict in verdicts.items() if verdict.label == "C"}
        refused = tuple(sorted((set(state.refused) - reports.keys()) | outside))
        return Admission(state.replace(refusals=state.refusals | counts, refused=refused), verdicts)

    def _verdict(self, ctx: Context, label: str, rho: int, sigma: int | None, before: int) -> Verdict:
        """What becomes of a seat's update, and why."""
        upload, reason = label != "C", None
        if label == "B" and ctx.numpy_rng("swing").random() >= 0.5:  # (4)
            upload, reason = False, "class B lost the draw"
        elif label == "C":
            reason = f"rho {rho} is above {bounds(ctx.params, sigma or 0)[1]:g}"
        count = refusals_after(ctx.params, before, label, upload=upload)
        figures = {"rho": rho, "sigma": sigma, "refusals": count}
        return Verdict(upload=upload, label=label, reason=reason, figures=figures)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        return state.replace(model=add(state.start, update.delta), formed=ctx.round_no)  # algorithm 2, 21

    def advance(self, ctx: Context, state: Any, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Any]]) -> Advance:
        told = [outcome.seat for outcome in outcomes if outcome.report is not None]
        counts = {seat: state.refusals.get(seat, 0) for seat in told}
        how = " in a row" if ctx.params.refusals == "consecutive" else ""
        out = {seat: f"refused {n} times{how}" for seat, n in counts.items() if n >= ctx.params.delta}
        again = [seat for seat in told if seat in state.refused and seat not in out]
        if ctx.params.adjust == "train" and state.formed == ctx.round_no and again:
            return Advance(state, again=again, retire=out)
        return replace(super().advance(ctx, state, tasks, outcomes), retire=out)

    def finish(self, ctx: Context, state: Any) -> Finish:
        formed = state.formed == ctx.round_no
        delta = delta_of(ctx, state.model, state.received) if formed else None
        counts = {ctx.at(seat=seat).client_id: n for seat, n in sorted(state.refusals.items())}
        waits = formed and state.refused and ctx.params.adjust == "start"
        between = Environment(refused=state.refused, formed=state.formed, edge_model=state.model if waits else {})
        return Finish(between, change(ctx, delta, counts))


class Device(DeviceHooks):
    """Trains, reports, waits for the verdict."""

    def init(self, ctx: Context) -> Any:
        return Own()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        received = starting_model(state, message)
        start = overlay(message.edge_model, state.buffers) if message.edge_model else received
        step = Adam(ctx.spec.lr, ctx.spec.weight_decay) if ctx.params.optimiser == "adam" else None
        fit = trainer.fit(ctx, start, step=step)
        local = default_local(ctx, received, fit)
        buffers, moved = local.state.buffers, cast("Update", local.update).delta
        adjusts = message.model if ctx.wave else message.edge_model
        figures = {"accuracy": fit.trained.n_correct / max(fit.trained.n_samples, 1), "loss": fit.trained.loss}
        figures |= {"edge_model_bytes": n_bytes(adjusts)} if adjusts else {}
        if ctx.wave:
            return replace(local, state=Own(buffers=buffers, own=fit.model), update=None, figures=figures)
        return replace(local, state=Own(buffers=buffers), update=change(ctx, moved), figures=figures)

    def report(self, ctx: Context, state: Any, local: Local, message: Any) -> Any:
        compared = cast("Change", local.update).delta if ctx.params.compare == "update" else local.model or {}
        return Report(accuracy=local.figures["accuracy"], loss=local.figures["loss"], signs=signs(ctx, compared))

    def personalise(
        self, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
    ) -> TensorMap | None:
        return local.model if local else state.own or None


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """All that travels, in the field that is averaged as `weighting` says."""
    return {"plain" if ctx.params.weighting == "one" else "by_samples": travelling(ctx, model)}


PICTURES = labels_by_round("classes", "BOFL: classes of devices by round", ("leader", "A", "B", "C"))

ALGORITHM = Algorithm(
    name="bofl",
    paper="Guo et al.: Efficient Federated Learning Scheme Based on Background Optimization. Computer Science 2022",
    params=Params,
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
    needs={"client": "device"},
    footprint=Footprint(sends=sends),
)
