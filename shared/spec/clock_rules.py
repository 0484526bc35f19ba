"""Which fields of a spec go with a simulated clock, and which with the real one."""

from __future__ import annotations

from typing import Any

MIN_WAIT_S, MAX_WAIT_S = 0.1, 86_400.0
"""Bounds on a deadline in wall seconds, with `clock: real`: no device answers faster, and a day is too long to wait."""


def check_clock(spec: Any) -> None:
    """Check that the fields of an `ExperimentSpec` fit its clock.

    Raises:
        ValueError: two fields contradict each other; the message begins with the name of the field at fault.
    """
    if spec.clock == "simulated":
        if spec.time_scale != 1:
            raise ValueError("time_scale needs clock: real: simulated time takes no time")
        return
    if spec.late == "next_round":
        raise ValueError("late: next_round needs clock: simulated: with clock: real an edge cancels late tasks")
    if spec.vectorised is not None:
        raise ValueError("vectorised needs clock: simulated: with clock: real each device gets a request of its own")
    if spec.overselection:
        raise ValueError(
            "overselection needs clock: simulated: with clock: real chance would decide which device is first"
        )
    for name in ("round_deadline_s", "report_deadline_s"):
        limit_s: float | None = getattr(spec, name)
        if limit_s is not None and not MIN_WAIT_S <= limit_s * spec.time_scale <= MAX_WAIT_S:
            raise ValueError(
                f"{name} {limit_s:g} at time_scale {spec.time_scale:g} is {limit_s * spec.time_scale:g} s of wall "
                f"time; with clock: real it is {MIN_WAIT_S:g} to {MAX_WAIT_S:g} s"
            )
    if spec.telemetry is not None:
        raise ValueError("twins with telemetry by messages need clock: simulated: with clock: real twins measure tasks")
    profiles = [part.profile for part in spec.devices.mixture]
    if any(profile.load is not None and profile.load.name != "none" for profile in profiles):
        raise ValueError("load needs clock: simulated: with clock: real the twins learn from measured times")
