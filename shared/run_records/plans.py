"""What a run would be, as `POST /plans` and `strata plan` answer: a text for people, and figures."""

from __future__ import annotations

from shared.core.formatting import counted, duration
from shared.core.records import Record


class PlannedDevices(Record):
    """Devices of one profile, and the median parts of their tasks: simulated seconds and joules."""

    name: str
    n: int
    down_s: float
    compute_s: float
    up_s: float
    task_s: float
    energy_j: float

    def __str__(self) -> str:
        parts = f"download {duration(self.down_s)}, compute {duration(self.compute_s)}, upload {duration(self.up_s)}"
        energy = f", {self.energy_j:.3g} J" if self.energy_j else ""
        return f"{counted(self.n, 'device')} {self.name}: a task takes {duration(self.task_s)} ({parts}){energy}"


class RunPlan(Record):
    """What a run would be.

    Attributes:
        lines: all that there is to say of it, a sentence a line.
        devices: by profile, the quickest first.
        round_s: simulated seconds of a round that waits for all devices; None where none trains.
        without_effect: of `lines`, those on fields of the spec that change nothing.
    """

    lines: tuple[str, ...]
    devices: tuple[PlannedDevices, ...]
    round_s: float | None
    without_effect: tuple[str, ...]
