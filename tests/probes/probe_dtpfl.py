"""DTPFL whose devices wait at the gate of a test (`tests.soak.gate`) before they train."""

from __future__ import annotations

from dataclasses import replace

from shared.algorithms import dtpfl
from shared.federation.hooks import Broadcast, Context, Local, OwnBuffers, Trainer
from tests.soak.gate import pass_gate


class Device(dtpfl.Device):
    def local_update(
        self, ctx: Context[dtpfl.Params], state: OwnBuffers, message: Broadcast, trainer: Trainer
    ) -> Local[OwnBuffers, dtpfl.Change]:
        assert ctx.seat is not None
        pass_gate(ctx.round_no, ctx.seat)
        return super().local_update(ctx, state, message, trainer)


ALGORITHM = replace(dtpfl.ALGORITHM, name="probe_dtpfl", device=Device())
