"""Which fields of digital twins' telemetry change nothing, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from shared.core.formatting import duration
from shared.simulation import Always, NoLoad, Profile
from shared.simulation.telemetry import TelemetrySpec, law
from shared.spec.experiment import ExperimentSpec


def telemetry_without_effect(spec: ExperimentSpec, profiles: Collection[Profile], round_s: float) -> Iterator[str]:
    """Yield a sentence for each field of `twins` that changes nothing.

    Args:
        spec: of the run.
        profiles: of its devices.
        round_s: the expected seconds of a round.
    """
    twins = spec.telemetry
    if spec.twins and not spec.plans and (twins is None or (spec.select != "fastest" and not spec.partial_work)):
        field = "twins" if twins is None else f"twins.{_named(twins)}"
        yield f"without effect on tasks: {field}: schedule {spec.schedule} does not plan by twins"
        return
    if twins is None:
        return
    if twins.loss == 1:
        yield "twins.loss 1: every message is lost: twins hear nothing of their devices"
    run_s = round_s * spec.num_rounds
    if twins.period_s > run_s:
        yield f"twins.period_s {twins.period_s:g} is longer than the run, {duration(run_s)}: most twins hear nothing"
    known = twins.estimator == "kalman" and all(law(profile.load)[1] == 0 for profile in profiles)
    if known and (twins.noise or twins.bias):
        fields = " and ".join(name for name in ("noise", "bias") if getattr(twins, name))
        yield f"without effect: twins.{fields}: kalman knows that the free compute of the devices does not change"
    exact = known or not (twins.noise or twins.bias or any(not isinstance(p.load, NoLoad) for p in profiles))
    heard = not twins.loss and all(isinstance(p.availability, Always) and p.battery_j is None for p in profiles)
    if exact and heard:
        yield f"without effect: twins.{_named(twins)}: devices are always on, and their free compute does not change"


def _named(twins: TelemetrySpec) -> str:
    """The fields of the messages that are given, beside their period."""
    given = {name: getattr(twins, name) for name in ("delay_s", "loss", "noise", "bias", "estimator")}
    default = TelemetrySpec(period_s=twins.period_s)
    return ", ".join(["period_s", *(name for name, value in given.items() if value != getattr(default, name))])
