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
    _shares(spec)


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
    profiles = [part.profile for part in spec.devices.mixture]
    if any(profile.load is not None and profile.load.name != "none" for profile in profiles):
        raise ValueError("load needs clock: simulated: with clock: real the twins go by what was measured")


def _shares(spec: ExperimentSpec) -> None:
    if spec.sync != "round" and spec.schedule == "own_data":
        raise ValueError(f"sync: {spec.sync} needs a schedule that divides samples, such as schedule: free_compute")
    if spec.sync == "step" and spec.momentum:
        raise ValueError("momentum needs sync: round or epoch: with sync: step every worker takes one plain SGD step")
    if spec.sync == "step" and spec.select != "all":
        raise ValueError("select needs sync: round or epoch: with sync: step an epoch is one for all seats")
    if spec.overrun is not None and not spec.plans:
        raise ValueError("overrun needs a schedule that plans shares: free_compute or finish_time")
    if spec.overrun is not None and spec.clock == "real":
        raise ValueError("overrun needs clock: simulated: with clock: real round_deadline_s ends all waits")
    rate = spec.arrival_rate
    if rate is not None and rate > 1 and rate != int(rate):
        raise ValueError(f"arrival_rate {rate:g} is neither a share of a part (up to 1) nor whole samples a round")
    if not spec.plans:
        return
    if spec.late == "next_round":
        raise ValueError("late: next_round needs schedule: own_data or equal: a planned share is planned anew")
    if spec.partial_work:
        raise ValueError("partial_work needs schedule: own_data or equal: a planned share is trained on as a whole")
    if spec.overselection:
        raise ValueError("overselection needs schedule: own_data or equal: of planned shares none is surplus")
