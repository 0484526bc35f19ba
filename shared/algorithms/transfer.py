"""Transfer learning: FedAvg, then every client fine-tunes the global model on its own data.

The baseline "TL" of Y. Liu, X. Wu, C. Liu (2025, see `dtpfl`), sections 3.3 and 3.4.4: FedAvg (equation 7) for 50
rounds, then 20 local epochs.

    federate, num_rounds - tune_rounds rounds     FedAvg
    tune, tune_rounds rounds                      w_k <- E epochs of SGD from w_k, initially the global model

`tune_rounds: 0` is FedAvg, bit for bit; if all rounds are tune rounds, it is `local_sgd`. In the phase `tune` clients
send no tensors. A client's model is tested after its local training. The client is a device, or with `client: edge` an
edge.

Deviation: fine-tuning is counted in rounds of the spec's `local_epochs` instead of epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from shared.algorithms import local_sgd
from shared.federation.hooks import (
    Algorithm,
    Context,
    ExperimentSpec,
    Footprint,
    Phase,
    Record,
    TensorMap,
    uploaded_names,
)


class Params(Record):
    """tune_rounds: the number of rounds, of the spec's, that are local; each has `local_epochs` epochs."""

    tune_rounds: Annotated[int, Field(ge=0, le=100_000)] = 1


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """Returns the rounds of FedAvg, then those of fine-tuning."""
    tune = min(params.tune_rounds, spec.num_rounds)
    found = (Phase("federate", spec.num_rounds - tune), Phase("tune", tune))
    return tuple(phase for phase in found if phase.num_rounds)


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """As in FedAvg; in the phase `tune` a client sends no tensors."""
    return local_sgd.sends(ctx, model) if ctx.phase == "tune" else {"delta": uploaded_names(ctx, model)}


class Edge(local_sgd.Edge):
    """FedAvg; in the phase `tune` local SGD alone."""

    def _alone(self, ctx: Context[Params]) -> bool:
        return ctx.phase == "tune" and super()._alone(ctx)


class Device(local_sgd.Device):
    """FedAvg; in the phase `tune` local SGD alone."""

    def _alone(self, ctx: Context[Params]) -> bool:
        return ctx.phase == "tune" and super()._alone(ctx)


ALGORITHM = Algorithm(
    name="transfer",
    paper="none; the baseline TL of Liu et al. 2025 (see dtpfl)",
    params=Params,
    edge=Edge(),
    device=Device(),
    edge_state=local_sgd.User,
    device_state=local_sgd.Own,
    phases=phases,
    headline="mean over clients",
    footprint=Footprint(sends=sends),
)
