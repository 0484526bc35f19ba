"""The cost of a visit in simulated seconds, bytes and joules, on the simulated devices and links.

Nothing here reads a clock. Random quantities of a visit (jitter, delays, whether it is dropped) come from the visit's
own streams, keyed by (seed, seat, round, edge round, wave, purpose).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from shared.core.records import Record
from shared.simulation import REFERENCE_FLOPS, Link, Profile, Seeds, drawn, uniform01


class LinkUse(Record):
    """Bytes that one seat, or one edge, received and sent in one round, as encoded in the simulated system."""

    down_bytes: int = 0
    up_bytes: int = 0

    def __add__(self, other: LinkUse) -> LinkUse:
        return LinkUse(down_bytes=self.down_bytes + other.down_bytes, up_bytes=self.up_bytes + other.up_bytes)


@dataclass(frozen=True)
class Passes:
    """Expected number of samples that a visit passes through the model; `Outcome.n_trained` counts the real ones.

    An edge refuses a visit that reports more than `most`.

    Attributes:
        per_training_sample: passes for each sample of a training step; above 1 if a step computes several gradients or
            trains several models.
        extra_per_sample: passes for each of the client's samples in addition to training.
        max_extra_per_sample: upper bound on `extra_per_sample`; None means `extra_per_sample`.
    """

    per_training_sample: float = 1.0
    extra_per_sample: float = 0.0
    max_extra_per_sample: float | None = None

    def of(self, n_trained: float, n_samples: int) -> float:
        """Return the passes of a visit that trains on `n_trained` samples and holds `n_samples`; 0 without training."""
        return self.per_training_sample * n_trained + self.extra_per_sample * n_samples if n_trained else 0.0

    def max_extra(self, n_samples: int) -> float:
        """Return an upper bound on the passes in addition to training."""
        return n_samples * (self.extra_per_sample if self.max_extra_per_sample is None else self.max_extra_per_sample)

    def most(self, n_trained: int, n_samples: int) -> int:
        """Return an upper bound on the passes of a visit that trains on `n_trained` samples and holds `n_samples`."""
        return math.ceil(self.per_training_sample * n_trained + self.max_extra(n_samples))


@dataclass(frozen=True)
class Cost:
    """The cost of an exchange, one after another: seconds of waiting, receiving, computing, waiting for the link
    (`queue_s`) and sending; and its energy."""

    down_s: float = 0.0
    compute_s: float = 0.0
    up_s: float = 0.0
    energy_j: float = 0.0
    wait_s: float = 0.0
    queue_s: float = 0.0

    @property
    def simulated_s(self) -> float:
        """Simulated seconds from the start of the exchange until its answer has arrived."""
        return self.down_s + self.compute_s + self.wait_s + self.queue_s + self.up_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.down_s + other.down_s,
            self.compute_s + other.compute_s,
            self.up_s + other.up_s,
            self.energy_j + other.energy_j,
            self.wait_s + other.wait_s,
            self.queue_s + other.queue_s,
        )


def transfer_s(n_bytes: int, bps: float, latency_s: float) -> float:
    """Return the seconds to move a body over a link; an empty body takes none."""
    return latency_s + 8 * n_bytes / bps if n_bytes else 0.0


def visit_cost(
    profile: Profile,
    latency_s: float,
    use: LinkUse,
    flops: float,
    seeds: Seeds,
    share: float = 1.0,
    working_s: Callable[[float, float], float] = lambda begin_s, work_s: work_s,
) -> Cost:
    """Return the cost of a visit: receive, compute, send.

    Args:
        profile: the seat's profile.
        latency_s: one-way latency to the edge; jitter is drawn for each direction.
        use: bytes that the seat receives and sends.
        flops: floating-point operations of its training.
        seeds: the visit's random streams.
        share: share of the task (and of its delay) that is done; `flops` already counts that share only.
        working_s: the seconds that its work takes, given the second of the visit at which it begins and the seconds
            that it takes at the profile's compute; its delay follows.
    """
    down_s, up_s = _transfers(profile, latency_s, use, seeds)
    compute_s = working_s(down_s, flops / (profile.compute_sps * REFERENCE_FLOPS))
    compute_s += share * drawn(profile.delay_s, seeds, "delay")
    energy_j = profile.j_per_flop * flops
    energy_j += profile.j_per_byte_down * use.down_bytes + profile.j_per_byte_up * use.up_bytes
    return Cost(down_s, compute_s, up_s, energy_j)


def upload_cost(profile: Profile, latency_s: float, use: LinkUse, seeds: Seeds, wait_s: float) -> Cost:
    """Return the cost of a visit's second exchange, in which the edge fetches the update after `wait_s` seconds.

    Its jitter and link delay are drawn from streams of their own.
    """
    sent = visit_cost(profile, latency_s, use, 0.0, lambda purpose: seeds(f"upload {purpose}"), share=0.0)
    return replace(sent, wait_s=wait_s)


def expected_cost(profile: Profile, latency_s: float, use: LinkUse, flops: float) -> Cost:
    """Return the expected cost of a visit: `visit_cost` with each quantity that is drawn per visit at its median."""
    return visit_cost(profile, latency_s, use, flops, lambda purpose: 1 << 62)


def link_cost(link: Link, use: LinkUse, seeds: Seeds) -> Cost:
    """Return the cost of a round's two bodies between the cloud and an edge; energy of edges is not counted."""
    down_s, up_s = _transfers(link, link.latency_s, use, seeds)
    return Cost(down_s=down_s, up_s=up_s)


def broken_off(
    profile: Profile,
    cost: Cost,
    use: LinkUse,
    flops: float,
    at_s: float,
    work_share: Callable[[float], float] | None = None,
) -> tuple[Cost, LinkUse]:
    """Return the cost and bytes of an exchange that was broken off: each of its steps counts for the time it had.

    Args:
        profile: the seat's profile.
        cost: cost of the whole exchange; returned unchanged if the exchange ends by `at_s`.
        use: bytes of the whole exchange.
        flops: floating-point operations of its training.
        at_s: seconds after its start at which the exchange was broken off.
        work_share: the share of the work that is done after seconds of computing; None means in proportion to them.
    """
    if cost.simulated_s <= at_s:
        return cost, use
    wait_s = min(cost.wait_s, at_s)
    left_s = at_s - wait_s
    down_s = min(cost.down_s, left_s)
    compute_s = min(cost.compute_s, left_s - down_s)
    queue_s = min(cost.queue_s, left_s - down_s - compute_s)
    up_s = min(cost.up_s, left_s - down_s - compute_s - queue_s)
    done = LinkUse(
        down_bytes=round(use.down_bytes * _share(down_s, cost.down_s)),
        up_bytes=round(use.up_bytes * _share(up_s, cost.up_s)),
    )
    worked = _share(compute_s, cost.compute_s) if work_share is None else work_share(compute_s)
    energy_j = profile.j_per_flop * flops * worked if down_s == cost.down_s else 0.0
    energy_j += profile.j_per_byte_down * done.down_bytes + profile.j_per_byte_up * done.up_bytes
    return Cost(down_s, compute_s, up_s, energy_j, wait_s, queue_s), done


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s else 1.0


def drop_share(profile: Profile, seeds: Seeds) -> float | None:
    """Return the share of its task after which a device drops its visit, uniform in 0..1; None if it finishes."""
    if not profile.drop_rate or uniform01(seeds("drop")) >= profile.drop_rate:
        return None
    return uniform01(seeds("drop at"))


def _transfers(link: Link, latency_s: float, use: LinkUse, seeds: Seeds) -> tuple[float, float]:
    """Return the seconds down and up, with jitter and the link's delay on sending."""
    down_s = transfer_s(use.down_bytes, link.down_bps, _jittered(latency_s, link.jitter_s, seeds, "jitter down"))
    up_s = transfer_s(use.up_bytes, link.up_bps, _jittered(latency_s, link.jitter_s, seeds, "jitter up"))
    return down_s, up_s + (drawn(link.link_delay_s, seeds, "link delay") if use.up_bytes else 0.0)


def _jittered(latency_s: float, jitter_s: float, seeds: Seeds, purpose: str) -> float:
    return max(latency_s + jitter_s * (2 * uniform01(seeds(purpose)) - 1), 0.0) if jitter_s else latency_s
