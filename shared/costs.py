"""Simulated seconds and bytes: what a visit would cost on the modelled devices and links.

Nothing here reads a clock. Bandwidths are in bits a second, sizes in bytes, latencies in seconds, compute in
training samples a second.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.records import Record

Bps = Annotated[float, Field(gt=0, le=1e15)]


class Profile(Record):
    """What a device and its link can do.

    Attributes:
        compute_sps: training samples a second.
        up_bps, down_bps: bandwidth to and from the edge, bits a second.
        latency_s: one way, to the edge that it visits.
    """

    name: str = Field(default="standard", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    compute_sps: Annotated[float, Field(gt=0, le=1e12)] = 500.0
    up_bps: Bps = 20e6
    down_bps: Bps = 100e6
    latency_s: Annotated[float, Field(ge=0, le=3600)] = 0.02


class DeviceSpec(Record):
    """The devices of an experiment."""

    profile: Profile = Profile()


class LinkSpec(Record):
    """The link between an edge and the cloud, and the edge's own worker."""

    up_bps: Bps = 100e6
    down_bps: Bps = 1e9
    latency_s: Annotated[float, Field(ge=0, le=3600)] = 0.01
    worker_sps: Annotated[float, Field(gt=0, le=1e12)] = 2000.0


class LinkUse(Record):
    """Bytes that one seat, or one edge, received and sent in one round, as encoded in the modelled system."""

    down_bytes: int = 0
    up_bytes: int = 0

    def __add__(self, other: LinkUse) -> LinkUse:
        return LinkUse(down_bytes=self.down_bytes + other.down_bytes, up_bytes=self.up_bytes + other.up_bytes)


def transfer_s(n_bytes: int, bps: float, latency_s: float) -> float:
    """Seconds to move a body over a link; nothing sent costs nothing."""
    return latency_s + 8 * n_bytes / bps if n_bytes else 0.0


def visit_s(profile: Profile, use: LinkUse, n_trained: int) -> float:
    """Seconds of one visit: receive, train `n_trained` samples (all epochs counted), send."""
    down = transfer_s(use.down_bytes, profile.down_bps, profile.latency_s)
    up = transfer_s(use.up_bytes, profile.up_bps, profile.latency_s)
    return down + n_trained / profile.compute_sps + up


def edge_link_s(link: LinkSpec, use: LinkUse) -> float:
    """Seconds that a round's two bodies spend between the cloud and an edge."""
    down = transfer_s(use.down_bytes, link.down_bps, link.latency_s)
    return down + transfer_s(use.up_bytes, link.up_bps, link.latency_s)
