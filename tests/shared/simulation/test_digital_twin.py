"""Digital twins: what they learn and predict, and to which workers they let the edge assign work."""

from __future__ import annotations

from typing import Any

import pytest

from shared.simulation.digital_twin import (
    HISTORY,
    PRIOR_SD,
    Telemetry,
    Twin,
    VisitObservation,
    is_bad,
    learn,
    observe,
    predict,
    refresh,
)


def seen(took_s: float | None = 10.0, outcome: str = "used", reason: str | None = None) -> VisitObservation:
    ordered: dict[str, Any] = {"round_no": 1, "edge_round": 0, "wave": 0, "at_s": 0.0, "n_trained": 10}
    predicted: dict[str, Any] = {"predicted_s": 10.0, "predicted_sd_s": 1.0}
    return VisitObservation(**ordered, **predicted, took_s=took_s, outcome=outcome, reason=reason)


GOOD, SLOW = seen(), seen(16.0)
DROPPED, SILENT = seen(None, "failed", "dropped"), seen(None, "failed", "lost")


def after(*visits: VisitObservation) -> Twin:
    twin = Twin(seat=3)
    for visit in visits:
        twin = observe(twin, visit, ratio=None)
    return twin


def planned(twin: Twin, on: bool = True, charge: float | None = None) -> Twin:
    """Returns the twin at the next edge round."""
    return refresh(twin, Telemetry(on=on, free_sps=100.0, charge=charge), new_edge_round=True)


def test_prior_follows_from_the_profile_with_its_uncertainty() -> None:
    assert predict(Twin(seat=0), 8.0) == (8.0, PRIOR_SD * 8.0)


def test_first_visit_counts_half_and_the_mean_and_variance_are_exponentially_weighted() -> None:
    once = learn(Twin(seat=0), 2.0)
    assert once.ratio == 1.5  # 1 + (2 - 1) / 2
    assert once.ratio_var == pytest.approx(0.5 * (0.0625 + 0.5 * 1.0))
    twice = learn(once, 2.0)
    assert twice.ratio == pytest.approx(1.5 + 0.5 / 3)
    assert twice.ratio_var == pytest.approx(2 / 3 * (once.ratio_var + 0.25 / 3))


def test_prediction_converges_to_constant_measurements_and_uncertainty_vanishes() -> None:
    twin = Twin(seat=0)
    for _ in range(40):
        twin = learn(twin, 4.0)
    mean_s, sd_s = predict(twin, 2.0)
    assert mean_s == pytest.approx(8.0, rel=1e-3)
    assert sd_s < 0.05


def test_visit_is_bad_if_lost_or_much_slower_than_predicted() -> None:
    assert not any(map(is_bad, (GOOD, seen(15.0))))
    assert all(map(is_bad, (SLOW, DROPPED, seen(None, "refused", "late"))))


def test_silent_worker_is_offline_for_doubling_periods_and_then_recovers_with_small_shares() -> None:
    twin = after(SILENT)
    assert (twin.health, twin.rest, twin.caution) == ("offline", 1, 0.0)
    assert (planned(twin).health, planned(planned(twin)).health) == ("offline", "recovering")
    assert planned(planned(twin)).caution == 0.5
    assert [after(*[SILENT] * n).rest for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 8]


def test_repeated_failures_or_slow_visits_degrade_and_good_visits_restore() -> None:
    assert after(DROPPED).health == "recovering"
    assert after(SLOW, DROPPED).health == "degraded"
    twin = planned(planned(planned(after(SLOW, SLOW))))
    assert (twin.health, twin.strikes) == ("recovering", 2)
    once = observe(twin, GOOD, ratio=None)
    assert once.health == "recovering"
    healed = observe(once, GOOD, ratio=None)
    assert (healed.health, healed.strikes, healed.caution) == ("healthy", 0, 1.0)
    assert observe(once, SLOW, ratio=None).rest == 4  # a third failure: it rests twice as long


def test_unavailable_worker_is_offline_and_one_with_an_empty_battery_degraded_until_it_is_back() -> None:
    off = planned(Twin(seat=0), on=False)
    assert (off.health, off.strikes) == ("offline", 0)
    assert planned(off).health == "recovering"
    low = planned(Twin(seat=0), charge=0.05)
    assert low.health == planned(low, charge=0.05).health == "degraded"
    assert planned(low, charge=0.9).health == "recovering"


def test_further_wave_of_an_edge_round_does_not_restore_workers() -> None:
    lost = after(SILENT).replace(rest=0)
    assert refresh(lost, Telemetry(free_sps=1.0), new_edge_round=False).health == "offline"
    assert refresh(lost, Telemetry(free_sps=1.0), new_edge_round=True).health == "recovering"


def test_history_is_bounded_and_keeps_the_newest() -> None:
    twin = Twin(seat=0)
    for n in range(HISTORY + 5):
        twin = observe(twin, GOOD.replace(round_no=n), ratio=1.0)
    assert [visit.round_no for visit in twin.history] == list(range(5, HISTORY + 5))
    assert twin.n_learned == HISTORY + 5
