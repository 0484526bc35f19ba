"""Nobody trains: every seat sends back what it received, so that a round is transport and addition alone."""

from __future__ import annotations

from typing import Any

from shared.federation.context import Ctx
from shared.federation.hooks import Algorithm, Bench, CloudHooks, DeviceHooks, Local, Update


class Cloud(CloudHooks):
    """The new model is the mean of what came back: the same model, round after round."""

    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        """Take the mean over."""
        return state.but(model={**state.model, **update.delta})


class Device(DeviceHooks):
    """The update is the model received: as large as a trained one."""

    def local_update(self, ctx: Ctx, state: Any, message: Any, bench: Bench) -> Local:
        """No step is taken."""
        floats = {name: tensor for name, tensor in message.model.items() if tensor.is_floating_point()}
        return Local(state, Update(delta=floats))


ALGORITHM = Algorithm(name="bench_transport", paper="none: a benchmark", cloud=Cloud(), device=Device())
