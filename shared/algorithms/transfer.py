"""Transfer learning: FedAvg, then every client fine-tunes the global model on its own data.

The baseline "TL" of Y. Liu, X. Wu, C. Liu (2025, see `dtpfl`), sections 3.3 and 3.4.4: FedAvg (equation 7) for 50
rounds, then 20 local epochs.

    federate, num_rounds - tune_rounds rounds     FedAvg
    tune, tune_rounds rounds                      w_k <- E epochs of SGD from w_k; at first w_k is the global model

`tune_rounds` 0 is FedAvg bit for bit; with as many as there are rounds it is `local_sgd`. While tuning nothing travels
up. Tested is the model after its local training. The client is a device, or with `client: edge` an edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from shared.algorithms import local_sgd
from shared.federation.hooks import Algorithm, Context, ExperimentSpec, Footprint, Phase, Record, TensorMap, travelling


class Params(Record):
    """tune_rounds: of the spec's rounds, how many are local; one is `local_epochs` epochs."""

    tune_rounds: Annotated[int, Field(ge=0, le=100_000)] = 1


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """First together, then alone."""
    tune = min(params.tune_rounds, spec.num_rounds)
    found = (Phase("federate", spec.num_rounds - tune), Phase("tune", tune))
    return tuple(phase for phase in found if phase.num_rounds)


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """FedAvg's; while tuning nothing from a client."""
    return local_sgd.sends(ctx, model) if ctx.phase == "tune" else {"delta": travelling(ctx, model)}


class Edge(local_sgd.Edge):
    """FedAvg's; while tuning a client alone."""

    def _alone(self, ctx: Context) -> bool:
        return ctx.phase == "tune" and super()._alone(ctx)


class Device(local_sgd.Device):
    """FedAvg's; while tuning a client alone."""

    def _alone(self, ctx: Context) -> bool:
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
