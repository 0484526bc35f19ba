"""FedBN.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021, algorithm 1.

    w_k^l  <- SGD on client k's samples, all layers l
    w^l     = sum_k n_k / n * w_k^l     for each layer l that is no batch-norm; batch-norm layers stay as they are

Scale, shift and running statistics of batch-norm stay in the client's state. A model without batch-norm: FedAvg, bit
for bit.

Deviations and readings:

- The paper's algorithm averages plainly, its digits have as many samples at every client; here by samples, as FedAvg.
- Down travels the whole model: from its initial batch-norm a client begins that comes later or has lost its state.
- Tested is the model that a client holds before it trains on: what it received with its own batch-norm. The global
  model, whose batch-norm nobody trains, is not. With `tested: trained` a client's own model is the one that it has just
  trained, as in methods without personal layers, and the one held is the model received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    CloudHooks,
    Context,
    DeviceHooks,
    Footprint,
    Local,
    ModelState,
    OwnBuffers,
    Record,
    Score,
    TensorMap,
    Trainer,
    Update,
    default_local,
    only,
    overlay,
    starting_model,
    travelling,
    without,
)


class Params(Record):
    """No parameter of the paper.

    Attributes:
        tested: which model of a client is tested as its own: `held`, before it trains on; or `trained`, when it has.
    """

    tested: Literal["held", "trained"] = "held"


class Own(OwnBuffers):
    """A device's state: scale and shift of its batch-norm, once it has trained, beside the statistics.

    `began`: with which batch-norm, statistics included, its last visit began, where that is still to be tested.
    """

    norm: ModelState = Field(default_factory=dict)
    began: ModelState = Field(default_factory=dict)


def norm_names(ctx: Context) -> frozenset[str]:
    """Names of batch-norm's parameters: those of the modules that have running statistics."""
    modules = {name.rpartition(".")[0] for name in ctx.model.buffer_names}
    parameters = (name for layer in ctx.model.layers for name in layer.parameters)
    return frozenset(name for name in parameters if name.rpartition(".")[0] in modules)


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """From a device all parameters but those of batch-norm; an edge that forms a model has those as they were."""
    return {"delta": travelling(ctx, model) - (norm_names(ctx) if ctx.seat is not None else frozenset())}


class Cloud(CloudHooks):
    """Averages all but batch-norm; where there is some, it has no model to test."""

    def evaluate(self, ctx: Context, state: Any, trainer: Trainer) -> dict[str, Score]:
        return {} if norm_names(ctx) else super().evaluate(ctx, state, trainer)


class Device(DeviceHooks):
    """Trains the whole model, keeps its batch-norm back."""

    def init(self, ctx: Context) -> Any:
        return Own()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start, mine = _held(state, message), norm_names(ctx)
        fit = trainer.fit(ctx, start)
        local = default_local(ctx, start, fit)
        held = ctx.params.tested == "held"
        began = {} if held else only(start, mine | ctx.model.buffer_names)
        own = Own(buffers=local.state.buffers, norm=only(fit.model, mine), began=began)
        update = Update(delta=without(cast("Update", local.update).delta, mine))
        return replace(local, state=own, update=update, model=start if held else fit.model)

    def personalise(
        self, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
    ) -> TensorMap | None:
        if local:
            return local.model
        return _held(state, message) if ctx.params.tested == "held" else None

    def evaluate(
        self, ctx: Context, state: Any, message: Any, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        if ctx.params.tested == "held":
            held = trainer.evaluate(own or _held(state, message))
            return held, held
        if own is None:  # nobody has trained: what is held now
            return trainer.evaluate(_held(state, message)), None
        return trainer.evaluate(overlay(message.model, state.began)), trainer.evaluate(own)


def _held(state: Any, message: Any) -> TensorMap:
    """The model received with the client's own batch-norm."""
    return overlay(starting_model(state, message), state.norm)


ALGORITHM = Algorithm(
    name="fedbn",
    paper="Li et al.: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021",
    params=Params,
    cloud=Cloud(),
    device=Device(),
    device_state=Own,
    buffers="local",
    headline="mean over clients",
    needs={"client": "device"},
    footprint=Footprint(sends=sends),
)
