"""Telemetry as messages: what an edge knows of its devices' free compute if they report it at times.

Device d sends message k at (k + phase) x period, with a phase of its own, if it is on then. The message measures the
free share x of its compute as z = (1 + bias) x + noise n with n standard normal, at least 0; it arrives after its
transfer and `delay_s`, or is lost. All draws of message k come from streams keyed by (seed, device, k).

Estimators of the free share at t, from the messages that have arrived:

    last     z of the newest
    ewma     m <- m + a (z - m) with a = `LEARNING_RATE`; the first message sets m
    kalman   the free share as a stationary first-order Gauss-Markov process with the mean m0, variance v0 and time
             constant T of the device's load (A. Gelb, ed.: Applied Optimal Estimation, 1974), filtered as by R. E.
             Kalman: A New Approach to Linear Filtering and Prediction Problems, 1960:
                 f = exp(-dt / T);  m <- m0 + f (m - m0);  v <- v0 + f^2 (v - v0)          (from message to message)
                 K = v / (v + noise^2);  m <- m + K (z - m);  v <- (1 - K) v               (by a message)
             It begins with m0 and v0, and the estimate at t is m, predicted to t.

Before its first message a device counts as free by `last` and `ewma`. The filter knows the law of a load (its fields in
the profile), not what is drawn from it, and not the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from shared.core.bounds import Count
from shared.core.errors import BadInput
from shared.core.records import LEFT_OUT, Record
from shared.simulation.distributions import Seeds, uniform01
from shared.simulation.load import Load, NoLoad, RandomWalk, Sinus

EWMA_WEIGHT = 0.3
"""Weight a of the newest message in `ewma`."""
MOST_MESSAGES = 100_000
"""Most messages of a device that an edge reads at once."""
_UNIT = NormalDist()


class TelemetrySpec(Record):
    """How devices report to the digital twins of their edge: by messages at times.

    Attributes:
        period_s: simulated seconds between two messages of a device.
        delay_s: seconds from a message's arrival by its link until the twin knows it.
        loss: probability that a message is lost.
        noise: standard deviation of the error of the measured free share of compute.
        bias: relative error of the measured free share: 0.1 measures a tenth too much.
        estimator: how twins estimate the free share between messages: by the `last` message, an exponentially weighted
            mean (`ewma`), or a filter that knows the law of the device's load (`kalman`).
        offline_after: a device counts as off after this many periods without a message.
        message_bytes: size of a message.
    """

    period_s: Annotated[float, Field(ge=1e-3, le=1e9)]
    delay_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    noise: Annotated[float, Field(ge=0, le=10)] = 0.0
    bias: Annotated[float, Field(ge=-0.99, le=10)] = 0.0
    estimator: Literal["last", "ewma", "kalman"] = "last"
    offline_after: Annotated[int, Field(ge=1, le=1_000_000)] = 3
    message_bytes: Annotated[int, Field(ge=1, le=1_000_000)] = 128


class Heard(Record):
    """What an edge has heard of a device in messages.

    Attributes:
        since_s: the simulated time from which on the edge listens.
        next: number of the next message that can arrive.
        n_sent, n_lost: messages that the device sent so far, and those of them that were lost.
        sent_s: when the newest message that arrived was sent; None before the first.
        share, variance: estimate of the free share at `sent_s`, and its variance (by `kalman`).
        n_collected: number of training samples collected, by the newest message.
        charge: charge of the battery, by the newest message; None if it has none, or before the first.
        found_off_s: when the edge last found the device off although its twin did not.
    """

    since_s: float
    next: Count
    n_sent: Count = 0
    n_lost: Count = 0
    sent_s: Annotated[float | None, LEFT_OUT] = None
    share: float = 1.0
    variance: float = 0.0
    n_collected: Count = 0
    charge: Annotated[float | None, LEFT_OUT] = None
    found_off_s: Annotated[float | None, LEFT_OUT] = None


class _Estimate(NamedTuple):
    """The free share by the messages so far: when the newest was sent, the share then, and its variance."""

    sent_s: float | None
    share: float
    variance: float


@dataclass(frozen=True)
class Device:
    """What a device's messages measure, by the simulated time: it is `on`, its `free` share, samples, and charge.

    `charge` is asked with the number of messages that the device had sent before.
    """

    on: Callable[[float], bool]
    free: Callable[[float], float]
    n_collected: Callable[[float], int]
    charge: Callable[[float, int], float | None]


@dataclass(frozen=True)
class Channel:
    """The messages of one device to its edge.

    Attributes:
        spec: of the run.
        load: the load in the device's profile.
        seeds: the device's random streams in this run.
        transfer_s: seconds that a message takes on its link.
    """

    spec: TelemetrySpec
    load: Load
    seeds: Seeds
    transfer_s: float

    @property
    def _phase(self) -> float:
        return uniform01(self.seeds("telemetry phase"))

    @property
    def _late_s(self) -> float:
        return self.transfer_s + self.spec.delay_s

    def began(self, since_s: float) -> Heard:
        """Return what an edge knows that begins to listen at a time."""
        first = max(math.ceil(since_s / self.spec.period_s - self._phase), 0)
        mean, variance, _ = law(self.load)
        known = {"share": mean, "variance": variance} if self.spec.estimator == "kalman" else {}
        return Heard(since_s=since_s, next=first, **known)

    def read(self, heard: Heard, now_s: float, device: Device) -> Heard:
        """Return what an edge knows after the messages that have arrived, or were lost, by now.

        Raises:
            BadInput: they are more than `MOST_MESSAGES`.
        """
        phase = self._phase
        last = math.floor((now_s - self._late_s) / self.spec.period_s - phase)
        if last - heard.next >= MOST_MESSAGES:
            raise BadInput(
                f"a device sent {last - heard.next + 1} messages of telemetry before its edge planned again; an edge "
                f"reads at most {MOST_MESSAGES}: a longer period is needed",
                field="twins.period_s",
            )
        known = _Estimate(heard.sent_s, heard.share, heard.variance)
        n_sent, n_lost, n_before = heard.n_sent, heard.n_lost, None
        for number in range(heard.next, last + 1):
            sent_s = (number + phase) * self.spec.period_s
            if not device.on(sent_s):
                continue
            if self._lost(number):
                n_lost += 1
            else:
                measured, n_before = self._measured(number, device.free(sent_s)), n_sent
                known = self._updated(heard.since_s, known, sent_s, measured)
            n_sent += 1
        found = heard.replace(next=max(last + 1, heard.next), n_sent=n_sent, n_lost=n_lost)
        if n_before is None or known.sent_s is None:
            return found
        collected, charge = device.n_collected(known.sent_s), device.charge(known.sent_s, n_before)
        return found.replace(**known._asdict(), n_collected=collected, charge=charge)

    def _lost(self, number: int) -> bool:
        return self.spec.loss > 0 and uniform01(self.seeds(f"telemetry {number} lost")) < self.spec.loss

    def _measured(self, number: int, share: float) -> float:
        measured = (1 + self.spec.bias) * share
        if self.spec.noise:
            measured += self.spec.noise * _UNIT.inv_cdf(uniform01(self.seeds(f"telemetry {number} noise")))
        return max(measured, 0.0)

    def _updated(self, since_s: float, known: _Estimate, sent_s: float, measured: float) -> _Estimate:
        """The estimate after a message."""
        if self.spec.estimator == "kalman":
            share, variance = self._predicted(since_s, known, sent_s)
            gain = variance / (variance + self.spec.noise**2) if variance else 0.0
            return _Estimate(sent_s, share + gain * (measured - share), (1 - gain) * variance)
        if self.spec.estimator == "last" or known.sent_s is None:
            return _Estimate(sent_s, measured, 0.0)
        return _Estimate(sent_s, known.share + EWMA_WEIGHT * (measured - known.share), 0.0)

    def _predicted(self, since_s: float, known: _Estimate, at_s: float) -> tuple[float, float]:
        mean, variance, time_s = law(self.load)
        kept = math.exp(-max(at_s - (since_s if known.sent_s is None else known.sent_s), 0.0) / time_s)
        return mean + kept * (known.share - mean), variance + kept**2 * (known.variance - variance)

    def share(self, heard: Heard, now_s: float) -> float:
        """Return the estimate of the device's free share at a time, at least 0."""
        if self.spec.estimator != "kalman":
            return heard.share
        known = _Estimate(heard.sent_s, heard.share, heard.variance)
        return max(self._predicted(heard.since_s, known, now_s)[0], 0.0)

    def counts_as_on(self, heard: Heard, now_s: float) -> bool:
        """Return whether the edge takes the device to be on."""
        newest_s = heard.since_s if heard.sent_s is None else heard.sent_s
        if heard.found_off_s is not None and (heard.sent_s is None or heard.sent_s <= heard.found_off_s):
            return False
        return now_s - newest_s <= self.spec.offline_after * self.spec.period_s + self._late_s


def law(load: Load) -> tuple[float, float, float]:
    """Return mean, variance and time constant of a load's free share, as those of a Gauss-Markov process.

    The time constant T of `steps` is the integral of their autocorrelation, half of `every_s`; of a sine, the time of
    one radian; of a random walk in a width w, that with which the process moves as far in a short time:
    2 v0 / T = step^2 / (3 every_s).
    """
    if isinstance(load, NoLoad):
        return 1.0, 0.0, math.inf
    mean, width = (load.low + load.high) / 2, load.high - load.low
    if isinstance(load, Sinus):
        return mean, width**2 / 8, load.period_s / (2 * math.pi)
    if isinstance(load, RandomWalk):
        return mean, width**2 / 12, max(width**2 * load.every_s / (2 * load.step**2), 1e-9)
    return mean, width**2 / 12, load.every_s / 2
