"""What of a spec must fit together: each field may be well by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.spec import ExperimentSpec

LEAST_WAIT_S, LONGEST_WAIT_S = 0.1, 86_400.0
"""Wall seconds that a deadline may be: nobody answers in less, and nobody waits a day."""


def check_fits(spec: ExperimentSpec) -> None:
    """See that the fields of a spec fit together.

    Raises:
        ValueError: they do not; begins with the name of the field that is wrong beside the others.
    """
    _numbers(spec)
    _selection(spec)
    _deadline(spec)
    _clock(spec)


def _numbers(spec: ExperimentSpec) -> None:
    n_seats = spec.num_devices if spec.max_devices is None else spec.max_devices
    spec.devices.check_latencies(n_seats, spec.num_edges)
    if spec.num_devices is None:
        return
    if spec.max_devices is not None and spec.max_devices < spec.num_devices:
        raise ValueError(f"max_devices {spec.max_devices} is below num_devices {spec.num_devices}")
    if spec.min_devices > spec.num_devices:
        raise ValueError(f"min_devices {spec.min_devices} is above num_devices {spec.num_devices}")


def _selection(spec: ExperimentSpec) -> None:
    if spec.fraction_train < 1 and spec.select == "all":
        raise ValueError("fraction_train below 1 needs select: random, fastest or power_of_choice")
    if spec.fraction_candidates is not None:
        if spec.select != "power_of_choice":
            raise ValueError("fraction_candidates needs select: power_of_choice")
        if spec.fraction_candidates < spec.fraction_train:
            raise ValueError("fraction_candidates is below fraction_train: candidates are more than are chosen")
    if spec.overselection and spec.select == "all":
        raise ValueError("overselection needs a policy that does not select all, such as select: random")
    if spec.overselection and spec.fraction_train == 1:
        raise ValueError("overselection needs fraction_train below 1: beyond all seats there are none")


def _deadline(spec: ExperimentSpec) -> None:
    if spec.late == "next_round" and spec.round_deadline_s is None:
        raise ValueError("late: next_round needs round_deadline_s: without a deadline nobody is late")
    if spec.partial_work and spec.round_deadline_s is None and spec.report_deadline_s is None:
        raise ValueError("partial_work needs round_deadline_s: without a deadline there is time for all work")
    if spec.report_deadline_s is None or spec.round_deadline_s is None:
        return
    if spec.report_deadline_s >= spec.round_deadline_s:
        raise ValueError("report_deadline_s is not below round_deadline_s: updates need time after the reports")


def _clock(spec: ExperimentSpec) -> None:
    if spec.clock == "simulated":
        if spec.time_scale != 1:
            raise ValueError("time_scale needs clock: real: simulated time takes no time")
        return
    if spec.late == "next_round":
        raise ValueError("late: next_round needs clock: simulated: with clock: real an edge breaks off who is late")
    if spec.overselection:
        raise ValueError("overselection needs clock: simulated: with clock: real who is first would be chance")
    for name in ("round_deadline_s", "report_deadline_s"):
        limit_s: float | None = getattr(spec, name)
        if limit_s is not None and not LEAST_WAIT_S <= limit_s * spec.time_scale <= LONGEST_WAIT_S:
            raise ValueError(
                f"{name} {limit_s:g} at time_scale {spec.time_scale:g} is {limit_s * spec.time_scale:g} s of wall "
                f"time; with clock: real it is {LEAST_WAIT_S:g} to {LONGEST_WAIT_S:g} s"
            )
