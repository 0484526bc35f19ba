"""Simulated seconds, bytes and joules: what a visit would cost on the modelled devices and links.

Nothing here reads a clock. What is drawn for a visit (jitter, delays, whether it is dropped) comes from the streams of
that visit, keyed by (seed, seat, round, edge round, wave, purpose).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.core.records import Record
from shared.simulation import REFERENCE_FLOPS, Link, Profile, Seeds, drawn, unit


class LinkUse(Record):
    """Bytes that one seat, or one edge, received and sent in one round, as encoded in the modelled system."""

    down_bytes: int = 0
    up_bytes: int = 0

    def __add__(self, other: LinkUse) -> LinkUse:
        return LinkUse(down_bytes=self.down_bytes + other.down_bytes, up_bytes=self.up_bytes + other.up_bytes)


@dataclass(frozen=True)
class Passes:
    """How many samples a visit passes through the model, as is expected before it: `Outcome.n_trained` counts them.

    Attributes:
        of_step: for each sample of a step; more than 1 where a step takes several gradients, or trains several models.
        beside: for each sample that it has, beside its training.
        most_beside: the same, at most: as long is a device waited for. None: `beside`.
    """

    of_step: float = 1.0
    beside: float = 0.0
    most_beside: float | None = None

    def of(self, n_trained: float, n_samples: int) -> float:
        """Of a visit whose steps have `n_trained` samples, and that has `n_samples`; none where it does not train."""
        return self.of_step * n_trained + self.beside * n_samples if n_trained else 0.0

    def at_most_beside(self, n_samples: int) -> float:
        """Beside its training, at most."""
        return n_samples * (self.beside if self.most_beside is None else self.most_beside)


@dataclass(frozen=True)
class Cost:
    """What an exchange takes: seconds of waiting, receiving, working and sending, one after another, and energy."""

    down_s: float = 0.0
    compute_s: float = 0.0
    up_s: float = 0.0
    energy_j: float = 0.0
    wait_s: float = 0.0

    @property
    def simulated_s(self) -> float:
        """From the moment it begins until its answer is there."""
        return self.down_s + self.compute_s + self.wait_s + self.up_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.down_s + other.down_s,
            self.compute_s + other.compute_s,
            self.up_s + other.up_s,
            self.energy_j + other.energy_j,
            self.wait_s + other.wait_s,
        )


def transfer_s(n_bytes: int, bps: float, latency_s: float) -> float:
    """Seconds to move a body over a link; nothing sent costs nothing."""
    return latency_s + 8 * n_bytes / bps if n_bytes else 0.0


def visit_cost(
    profile: Profile, latency_s: float, use: LinkUse, flops: float, seeds: Seeds, share: float = 1.0
) -> Cost:
    """What a visit costs: receive, work, send.

    Args:
        profile: of the seat.
        latency_s: one way, to the edge that it visits; jitter is drawn for each direction.
        use: what it receives and sends.
        flops: operations of its training.
        seeds: the visit's streams.
        share: of the work (and of its delay) that is done; `flops` has been cut to it already.
    """
    compute_s = flops / (profile.compute_sps * REFERENCE_FLOPS) + share * drawn(profile.delay_s, seeds, "delay")
    energy_j = profile.j_per_flop * flops
    energy_j += profile.j_per_byte_down * use.down_bytes + profile.j_per_byte_up * use.up_bytes
    down_s, up_s = _transfers(profile, latency_s, use, seeds)
    return Cost(down_s, compute_s, up_s, energy_j)


def upload_cost(profile: Profile, latency_s: float, use: LinkUse, seeds: Seeds, wait_s: float) -> Cost:
    """What the second exchange of a visit costs, in which an update is asked for and sent, after so long a wait.

    Its jitter and its link's delay are drawn from streams of their own.
    """
    sent = visit_cost(profile, latency_s, use, 0.0, lambda purpose: seeds(f"upload {purpose}"), share=0.0)
    return replace(sent, wait_s=wait_s)


def expected_cost(profile: Profile, latency_s: float, use: LinkUse, flops: float) -> Cost:
    """What a visit is expected to cost, as `visit_cost`: what is drawn anew for each visit is taken at its median."""
    return visit_cost(profile, latency_s, use, flops, lambda purpose: 1 << 62)


def link_cost(link: Link, use: LinkUse, seeds: Seeds) -> Cost:
    """What a round's two bodies cost between the cloud and an edge; the energy of edges is not counted."""
    down_s, up_s = _transfers(link, link.latency_s, use, seeds)
    return Cost(down_s=down_s, up_s=up_s)


def broken_off(profile: Profile, cost: Cost, use: LinkUse, flops: float, at_s: float) -> tuple[Cost, LinkUse]:
    """What was done of an exchange that was broken off: of each of its steps a share as large as that of its time.

    Args:
        profile: of the seat.
        cost: of the whole exchange; one that ends by `at_s` stays as it is.
        use: what it receives and sends as a whole.
        flops: operations of its training.
        at_s: when it was broken off, in seconds after it began.
    """
    if cost.simulated_s <= at_s:
        return cost, use
    wait_s = min(cost.wait_s, at_s)
    left_s = at_s - wait_s
    down_s = min(cost.down_s, left_s)
    compute_s = min(cost.compute_s, left_s - down_s)
    up_s = min(cost.up_s, left_s - down_s - compute_s)
    done = LinkUse(
        down_bytes=round(use.down_bytes * _share(down_s, cost.down_s)),
        up_bytes=round(use.up_bytes * _share(up_s, cost.up_s)),
    )
    energy_j = profile.j_per_flop * flops * _share(compute_s, cost.compute_s) if down_s == cost.down_s else 0.0
    energy_j += profile.j_per_byte_down * done.down_bytes + profile.j_per_byte_up * done.up_bytes
    return Cost(down_s, compute_s, up_s, energy_j, wait_s), done


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s else 1.0


def drop_share(profile: Profile, seeds: Seeds) -> float | None:
    """The share of its work after which a device drops its visit, uniform in 0..1; None if it does not."""
    if not profile.drop_rate or unit(seeds("drop")) >= profile.drop_rate:
        return None
    return unit(seeds("drop at"))


def _transfers(link: Link, latency_s: float, use: LinkUse, seeds: Seeds) -> tuple[float, float]:
    """Seconds down and up, with jitter, and what the link delays sending."""
    down_s = transfer_s(use.down_bytes, link.down_bps, _jittered(latency_s, link.jitter_s, seeds, "jitter down"))
    up_s = transfer_s(use.up_bytes, link.up_bps, _jittered(latency_s, link.jitter_s, seeds, "jitter up"))
    return down_s, up_s + (drawn(link.link_delay_s, seeds, "link delay") if use.up_bytes else 0.0)


def _jittered(latency_s: float, jitter_s: float, seeds: Seeds, purpose: str) -> float:
    return max(latency_s + jitter_s * (2 * unit(seeds(purpose)) - 1), 0.0) if jitter_s else latency_s
