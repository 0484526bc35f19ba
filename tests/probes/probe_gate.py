"""FedAvg whose visits wait at the gate of a test (`tests.soak.gate`) before they train."""

from __future__ import annotations

from shared.federation.hooks import Algorithm, Broadcast, Context, DeviceHooks, Local, OwnBuffers, Trainer
from tests.soak.gate import pass_gate


class Device(DeviceHooks):
    def local_update(self, ctx: Context, state: OwnBuffers, message: Broadcast, trainer: Trainer) -> Local:
        assert ctx.seat is not None
        pass_gate(ctx.round_no, ctx.seat)
        return super().local_update(ctx, state, message, trainer)


ALGORITHM = Algorithm(name="probe_gate", paper="none: a probe", device=Device())
