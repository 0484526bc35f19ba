"""Telemetry in messages: when they come, what they measure, and the estimators against plain numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from shared.simulation import Load, NoLoad, free_share, telemetry
from shared.simulation.load import RandomWalk, Sinus, Steps
from shared.simulation.telemetry import Channel, Device, Heard, TelemetrySpec, law
from tests.shared.simulation.test_load import streams_of

WALK = RandomWalk(every_s=5, step=0.2, low=0.1, high=0.9)


def channel(load: Load = WALK, transfer_s: float = 0.0, seat: int = 0, **fields: Any) -> Channel:
    return Channel(TelemetrySpec(**{"period_s": 2.0, **fields}), load, streams_of(seat), transfer_s)


def device(of: Channel, *, on: Any = lambda at_s: True) -> Device:
    return Device(on, lambda at_s: free_share(of.load, at_s, of.seeds), int, lambda at_s, n: None)


def read(of: Channel, until_s: float, since_s: float = 0.0, **known: Any) -> Heard:
    return of.read(of.began(since_s), until_s, device(of, **known))


def measured(of: Channel, until_s: float) -> list[tuple[float, float]]:
    """Instants and values of the messages that arrive by a time, read one at a time by `last`."""
    plain = Channel(of.spec.replace(estimator="last"), of.load, of.seeds, of.transfer_s)
    heard, found = plain.began(0.0), list[tuple[float, float]]()
    for at_s in np.arange(0.0, until_s + of.spec.period_s / 2, of.spec.period_s / 2).tolist():
        heard = plain.read(heard, min(at_s, until_s), device(plain))
        if heard.sent_s is not None and (not found or found[-1][0] != heard.sent_s):
            found.append((heard.sent_s, heard.share))
    return found


# ---- messages


def test_a_device_sends_every_period_and_a_message_arrives_after_its_transfer_and_delay() -> None:
    of = channel(transfer_s=0.5, delay_s=3.0)
    instants = [at_s for at_s, _ in measured(of, 41.0)]
    assert np.diff(instants) == pytest.approx(2.0)
    assert 0 < instants[0] < 2
    first = instants[0] + 3.5
    assert (read(of, first - 1e-6).sent_s, read(of, first + 1e-6).sent_s) == (None, instants[0])
    assert read(of, 41.0, since_s=instants[5]).n_sent == len(instants) - 5  # sent to another edge before


def test_reading_often_or_once_is_the_same_and_off_devices_send_nothing() -> None:
    for estimator in ("last", "ewma", "kalman"):
        of = channel(loss=0.3, noise=0.1, bias=0.2, estimator=estimator)
        heard = of.began(0.0)
        for at_s in (0.1, 7.0, 7.0, 30.0, 99.0):
            heard = of.read(heard, at_s, device(of))
        assert heard == read(of, 99.0)
    half = read(channel(), 100.0, on=lambda at_s: at_s < 50)
    assert half.n_sent == 25
    assert 48 < (half.sent_s or 0) < 50
    assert half.next == 50


def test_messages_are_lost_and_measured_as_the_spec_says() -> None:
    of = channel(NoLoad(), loss=0.2, noise=0.05, bias=-0.5)
    heard = read(of, 8000.0)
    assert heard.n_sent == 4000
    low, high = stats.binom(4000, 0.2).interval(0.999)
    assert low <= heard.n_lost <= high
    errors = [value - 0.5 for _, value in measured(of, 2000.0)]
    assert stats.kstest(errors, stats.norm(0, 0.05).cdf).pvalue > 1e-3
    assert read(channel(seat=1), 99.0) != read(channel(), 99.0)


def test_a_device_counts_as_off_after_some_periods_of_silence_or_when_it_was_found_off() -> None:
    of = channel(offline_after=3, delay_s=1.0)
    heard = read(of, 50.0)
    assert heard.sent_s is not None
    edge_s = heard.sent_s + 3 * 2 + 1
    assert (of.counts_as_on(heard, edge_s - 1e-6), of.counts_as_on(heard, edge_s + 1e-6)) == (True, False)
    found = heard.replace(found_off_s=heard.sent_s + 0.5)
    assert not of.counts_as_on(found, heard.sent_s + 0.5)
    assert of.counts_as_on(of.read(found, heard.sent_s + 4, device(of)), heard.sent_s + 4)
    assert of.counts_as_on(of.began(10.0), 16.0)
    assert not of.counts_as_on(of.began(10.0), 17.5)


def test_more_messages_than_an_edge_reads_are_refused_by_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_MESSAGES", 10)
    assert read(channel(), 21.9).n_sent == 10
    with pytest.raises(BadInput, match="sent 50 messages") as caught:
        read(channel(), 100.0)
    assert caught.value.field == "twins.period_s"


# ---- estimators


@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_estimators_equal_their_formulas_in_numpy(loss: float) -> None:
    fields: dict[str, Any] = {"noise": 0.15, "loss": loss}
    seen = measured(channel(**fields), 200.0)
    z, instants = np.array([value for _, value in seen]), np.array([at_s for at_s, _ in seen])
    assert (len(z) == 100) == (loss == 0)
    now_s = 203.0  # nothing arrives in between: the spec's delay
    assert channel().share(read(channel(**fields), 200.0), now_s) == z[-1]

    weights = 0.3 * 0.7 ** np.arange(len(z) - 1, -1, -1)
    weights[0] /= 0.3
    assert channel(estimator="ewma").share(read(channel(**fields, estimator="ewma"), 200.0), now_s) == pytest.approx(
        weights @ z
    )

    # The filter is the conditional mean of a Gaussian process with covariance v0 exp(-|t - s| / T).
    mean, variance, time_s = law(WALK)
    covariance = variance * np.exp(-np.abs(instants[:, None] - instants) / time_s) + 0.15**2 * np.eye(len(z))
    to_now = variance * np.exp(-(now_s - instants) / time_s)
    expected = mean + to_now @ np.linalg.solve(covariance, z - mean)
    of = channel(**fields, estimator="kalman")
    heard = read(of, 200.0)
    assert of.share(heard, now_s) == pytest.approx(expected, rel=1e-9)
    to_last = variance * np.exp(-(instants[-1] - instants) / time_s)
    assert heard.variance == pytest.approx(variance - to_last @ np.linalg.solve(covariance, to_last), rel=1e-9)


def test_without_noise_the_filter_takes_a_message_as_it_is_and_without_messages_the_mean() -> None:
    of = channel(estimator="kalman")
    heard = read(of, 50.0)
    assert heard.sent_s is not None
    assert (heard.share, heard.variance) == (free_share(WALK, heard.sent_s, of.seeds), 0.0)
    assert of.share(heard, heard.sent_s + 1e6) == pytest.approx(0.5)
    assert of.share(of.began(0.0), 1.0) == 0.5
    assert channel().share(channel().began(0.0), 1.0) == 1.0
    still = channel(NoLoad(), estimator="kalman", noise=0.3)
    assert still.share(read(still, 50.0), 50.0) == 1.0


def test_under_noise_the_filter_errs_less_than_the_mean_and_the_mean_less_than_the_last_message() -> None:
    def error(estimator: str) -> float:
        of = channel(RandomWalk(every_s=5, step=0.05, low=0.1, high=0.9), noise=0.2, estimator=estimator)
        heard, errors = of.began(0.0), list[float]()
        for at_s in np.arange(10.0, 4000.0, 10.0).tolist():
            heard = of.read(heard, at_s, device(of))
            errors.append(of.share(heard, at_s) - free_share(of.load, at_s, of.seeds))
        return float(np.sqrt(np.mean(np.square(errors))))

    kalman, ewma, last = (error(name) for name in ("kalman", "ewma", "last"))
    assert kalman < 0.95 * ewma
    assert ewma < 0.7 * last


@pytest.mark.parametrize("load", [Sinus(period_s=100, low=0.2), Steps(every_s=10, low=0.2), WALK])
def test_the_law_of_a_load_has_its_mean_and_variance(load: Load) -> None:
    shares = [
        free_share(load, at_s, streams_of(seat)) for seat in range(40) for at_s in np.arange(0, 1e4, 97.0).tolist()
    ]
    mean, variance, time_s = law(load)
    assert np.mean(shares) == pytest.approx(mean, abs=0.03)
    assert np.var(shares) == pytest.approx(variance, rel=0.1)
    assert 0 < time_s < math.inf


@pytest.mark.parametrize(
    ("twins", "message"),
    [
        ({}, "twins.period_s: a value is required"),
        ({"period_s": 0}, "twins.period_s: must be at least 0.001"),
        ({"period_s": 1, "loss": 1.5}, "twins.loss: must be at most 1"),
        ({"period_s": 1, "estimator": "mean"}, "twins.estimator: must be 'last', 'ewma' or 'kalman'"),
    ],
)
def test_a_telemetry_that_makes_no_sense_is_refused(twins: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_spec({"twins": twins})
    with pytest.raises(BadInput, match="need clock: simulated"):
        parse_spec({"twins": {"period_s": 1}, "clock": "real"})
