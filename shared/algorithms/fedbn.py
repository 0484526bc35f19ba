"""FedBN.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021, algorithm 1.

    w_k^l  <- SGD on client k's samples, for all layers l
    w^l     = sum_k n_k / n * w_k^l     for each layer l that is not batch-norm; batch-norm layers stay local

Scale, shift and running statistics of batch-norm are part of the client's state. For a model without batch-norm it is
FedAvg, bit for bit.

Deviations and readings:

- Clients are weighted by samples, as in FedAvg. The paper's algorithm takes the plain mean; its clients all have the
  same number of samples.
- The whole model is sent down: a client that joins later, or has lost its state, starts from the initial batch-norm.
- A client's model is tested before it trains: the model received with the client's own batch-norm. The global model is
  not tested, since no client trains its batch-norm. With `tested: trained` the own model is the one just trained, as in
  methods without personal layers, and the model held before is reported as the one received.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    Fit,
    Footprint,
    GlobalModel,
    Local,
    ModelState,
    OwnBuffers,
    Record,
    Score,
    TensorMap,
    Trainer,
    Training,
    Update,
    delta_of,
    only,
    overlay,
    own_buffers,
    starting_model,
    uploaded_names,
    without,
)


class Params(Record):
    """The paper has no parameters of its own.

    Attributes:
        tested: which model of a client is tested as its own: the one `held` before training, or the `trained` one.
    """

    tested: Literal["held", "trained"] = "held"


class Own(OwnBuffers):
    """A device's state.

    Attributes:
        norm: scale and shift of its batch-norm; empty before its first training.
        began: batch-norm, statistics included, with which its last visit started; kept with `tested: trained` only.
    """

    norm: ModelState = Field(default_factory=dict)
    began: ModelState = Field(default_factory=dict)


def norm_names(ctx: Context[Params]) -> frozenset[str]:
    """Returns the names of the batch-norm parameters."""
    return ctx.model.norm_names


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """A device sends all but batch-norm; the update of an edge that forms a model has zeros for it."""
    return {"delta": uploaded_names(ctx, model) - (norm_names(ctx) if ctx.seat is not None else frozenset())}


class Cloud(CloudHooks):
    """Averages all layers but batch-norm; with batch-norm in the model there is no global model to test."""

    def evaluate(self, ctx: Context[Params], state: GlobalModel, trainer: Trainer) -> dict[str, Score]:
        return {} if norm_names(ctx) else super().evaluate(ctx, state, trainer)


class Device(DeviceHooks[Own]):
    """Trains the whole model and keeps its batch-norm local."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def training(self, ctx: Context[Params], state: Own, message: Broadcast) -> Training:
        return Training(_held(state, message))

    def learned(
        self, ctx: Context[Params], state: Own, message: Broadcast, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[Own]:
        start, mine = training.start, norm_names(ctx)
        held = ctx.params.tested == "held"
        began = {} if held else only(start, mine | ctx.model.buffer_names)
        own = Own(buffers=own_buffers(ctx, fit.model), norm=only(fit.model, mine), began=began)
        update = Update(delta=without(delta_of(ctx, fit.model, start), mine))
        return Local(own, update, start if held else fit.model, fit.trained)

    def personalise(
        self, ctx: Context[Params], state: Own, message: Broadcast, local: Local[Own] | None, trainer: Trainer
    ) -> TensorMap | None:
        if local:
            return local.model
        return _held(state, message) if ctx.params.tested == "held" else None

    def evaluate(
        self, ctx: Context[Params], state: Own, message: Broadcast, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        if ctx.params.tested == "held":
            held = trainer.evaluate(own or _held(state, message))
            return held, held
        if own is None:  # the visit only evaluates
            return trainer.evaluate(_held(state, message)), None
        return trainer.evaluate(overlay(message.model, state.began)), trainer.evaluate(own)


def _held(state: Own, message: Broadcast) -> TensorMap:
    """Returns the model received with the client's own batch-norm."""
    return overlay(starting_model(state, message), state.norm)


ALGORITHM = Algorithm(
    name="fedbn",
    paper="Li et al.: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021",
    params=Params,
    cloud=Cloud(),
    device=Device(),
    device_state=Own,
    buffers="local",
    personal=lambda ctx: norm_names(ctx) | ctx.model.buffer_names,
    headline="mean over clients",
    needs={"client": "device"},
    footprint=Footprint(sends=sends),
)
