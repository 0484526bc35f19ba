"""FedProx.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, algorithm 2.

    h_k(w; w_t) = F_k(w) + mu/2 * |w - w_t|^2                                                        (2)

A device minimises h_k instead of F_k: its gradient gains mu * (w - w_t). mu = 0 is FedAvg, bit for bit.

Deviations: clients are weighted by samples, as in FedAvg, and drawn without replacement (the paper draws them by
sample share and averages plainly). Partial work is the spec's business (`local_epochs`), not the algorithm's.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Context,
    Correct,
    DeviceHooks,
    Local,
    Record,
    Tensor,
    TensorMap,
    Trainer,
    default_local,
    starting_model,
)


class Params(Record):
    """mu: weight of the proximal term; the paper tries 0.001, 0.01, 0.1 and 1."""

    mu: Annotated[float, Field(ge=0, le=1e3)] = 0.01


def pull_towards(anchor: TensorMap, names: list[str], mu: float) -> Correct:
    """A gradient correction that adds mu * (w - anchor)."""
    anchors = [anchor[name] for name in names]

    def correct(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for weight, gradient, start in zip(parameters, gradients, anchors, strict=True):
            gradient.add_(weight - start, alpha=mu)  # gradient of (2)

    return correct


class Device(DeviceHooks):
    """Local SGD on h_k."""

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start = starting_model(state, message)
        names = [name for name in start if name not in ctx.model.buffer_names]
        correct = pull_towards(start, names, ctx.params.mu) if ctx.params.mu else None
        return default_local(ctx, start, trainer.fit(ctx, start, correct=correct))


ALGORITHM = Algorithm(
    name="fedprox",
    paper="Li et al.: Federated Optimization in Heterogeneous Networks. MLSys 2020",
    params=Params,
    device=Device(),
)
