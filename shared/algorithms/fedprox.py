"""FedProx.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, algorithm 2.

    h_k(w; w_t) = F_k(w) + mu/2 * |w - w_t|^2                                                        (2)

A device minimises h_k instead of F_k: mu * (w - w_t) is added to its gradient. mu = 0 is FedAvg, bit for bit.

Deviations:

- Clients are weighted by samples and drawn without replacement, as in FedAvg. The paper draws them in proportion to
  their samples and takes plain means.
- Partial work of stragglers is set by the spec (`partial_work`, `local_epochs`), not by the algorithm.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    Context,
    Correct,
    DeviceHooks,
    Local,
    OwnBuffers,
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
    """Returns a gradient correction that adds mu * (w - anchor) for the parameters of these names."""
    anchors = [anchor[name] for name in names]

    def correct(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for weight, gradient, start in zip(parameters, gradients, anchors, strict=True):
            gradient.add_(weight - start, alpha=mu)  # gradient of (2)

    return correct


class Device(DeviceHooks):
    """Local SGD on h_k."""

    def local_update(self, ctx: Context[Params], state: OwnBuffers, message: Broadcast, trainer: Trainer) -> Local:
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
