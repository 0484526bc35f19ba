"""No device trains: each sends back the model that it received, so that a round is transport and addition alone."""

from __future__ import annotations

from shared.federation.context import Context
from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    DeviceHooks,
    GlobalModel,
    Local,
    OwnBuffers,
    Trainer,
    Update,
)


class Cloud(CloudHooks):
    """The new model is the mean of the returned models: the same model in every round."""

    def aggregate(self, ctx: Context, state: GlobalModel, update: Update) -> GlobalModel:
        """Replaces the model by the mean of the updates."""
        return state.replace(model={**state.model, **update.delta})


class Device(DeviceHooks):
    """The update is the model received: as large as a trained one."""

    def local_update(self, ctx: Context, state: OwnBuffers, message: Broadcast, trainer: Trainer) -> Local:
        """Sends the model back without training."""
        floats = {name: tensor for name, tensor in message.model.items() if tensor.is_floating_point()}
        return Local(state, Update(delta=floats))


ALGORITHM = Algorithm(name="bench_transport", paper="none: a benchmark", cloud=Cloud(), device=Device())
