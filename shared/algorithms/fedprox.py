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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    Context,
    DeviceHooks,
    Elementwise,
    OwnBuffers,
    Record,
    Tensor,
    TensorMap,
    Training,
    starting_model,
)


class Params(Record):
    """mu: weight of the proximal term; the paper tries 0.001, 0.01, 0.1 and 1."""

    mu: Annotated[float, Field(ge=0, le=1e3)] = 0.01


@dataclass(frozen=True)
class Pull:
    """Adds mu * (w - anchor) to the gradients, the gradient of the proximal term."""

    mu: float

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor], anchors: list[Tensor]) -> None:
        for weight, gradient, start in zip(parameters, gradients, anchors, strict=True):
            gradient.add_(weight - start, alpha=self.mu)  # gradient of (2)


def pull_towards(anchor: TensorMap, names: Sequence[str], mu: float) -> Elementwise:
    """Returns a gradient correction that adds mu * (w - anchor) for the parameters of these names."""
    return Elementwise(Pull(mu), ([anchor[name] for name in names],))


class Device(DeviceHooks):
    """Local SGD on h_k."""

    def training(self, ctx: Context[Params], state: OwnBuffers, message: Broadcast) -> Training:
        start = starting_model(state, message)
        names = ctx.model.trainable_names
        return Training(start, pull_towards(start, names, ctx.params.mu) if ctx.params.mu else None)


ALGORITHM = Algorithm(
    name="fedprox",
    paper="Li et al.: Federated Optimization in Heterogeneous Networks. MLSys 2020",
    params=Params,
    device=Device(),
    asynchronous="yes",
)
