"""The link and profile of one seat or edge, with every distribution of the spec drawn."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from shared.core.records import Record
from shared.simulation.availability import Always, Availability
from shared.simulation.distributions import MAX_QUANTITY, Quantity, scaled
from shared.simulation.load import Load, NoLoad

REFERENCE_FLOPS = 24_680_448
"""FLOPs of training the reference model on one sample: `cnn_mnist` on 1x28x28 images of 10 classes, counted by
`shared.training.flops`. `compute_sps` counts samples of this model."""

Bps = Annotated[float, Field(gt=0, le=MAX_QUANTITY)]
Sps = Annotated[float, Field(gt=0, le=MAX_QUANTITY)]
Seconds = Annotated[float, Field(ge=0, le=MAX_QUANTITY)]
Joules = Annotated[float, Field(ge=0, le=1e3)]
Slows = Literal["compute", "visit", "link"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class Link(Record):
    """The properties of a link; links do not share bandwidth.

    Attributes:
        up_bps, down_bps: bandwidth towards the cloud and away from it, in bits a second.
        latency_s: one-way latency of the link itself.
        jitter_s: a transfer's latency is uniform within this distance of `latency_s`, and at least 0.
        link_delay_s: delay added to each transfer towards the cloud, drawn anew for each.
        j_per_byte_up, j_per_byte_down: energy to send and to receive a byte, at the end away from the cloud.
    """

    name: Name = "standard"
    up_bps: Bps = 20e6
    down_bps: Bps = 100e6
    latency_s: Seconds = 0.02
    jitter_s: Seconds = 0.0
    link_delay_s: Quantity = 0.0
    j_per_byte_up: Joules = 0.0
    j_per_byte_down: Joules = 0.0


class Profile(Link):
    """The properties of a device and its link.

    Attributes:
        compute_sps: compute, in training samples of the reference model a second, after `slowdown`.
        slowdown: factor by which a straggler is slower; 1 for other devices.
        slows: what of a straggler is slower: its `compute`, its `link`, or both (`visit`).
        delay_s: delay added to the training of each visit, drawn anew for each.
        availability: when the device is on.
        load: which share of its compute is free at which time.
        battery_j: energy for the visits of a run; None means unlimited.
        drop_rate: probability that a visit is dropped.
        j_per_flop: energy of a floating-point operation in training.
    """

    compute_sps: Sps = 500.0
    slowdown: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    slows: Annotated[Slows, Field(exclude_if=lambda what: what == "compute")] = "compute"
    delay_s: Quantity = 0.0
    availability: Availability = Always()
    load: Load = NoLoad()
    battery_j: Annotated[float, Field(gt=0, le=MAX_QUANTITY)] | None = None
    drop_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    j_per_flop: Joules = 0.0

    def slowed(self, slowdown: float, slows: Slows = "compute") -> Self:
        """Return the profile of a straggler: its times are multiplied by a factor, its energy is not."""
        changes: dict[str, Any] = {"slowdown": slowdown, "slows": slows}
        if slows != "link":
            changes["compute_sps"] = self.compute_sps / slowdown
        if slows == "visit":
            changes["delay_s"] = scaled(self.delay_s, slowdown)
        if slows != "compute":
            changes |= {name: getattr(self, name) / slowdown for name in ("up_bps", "down_bps")}
            times = ("latency_s", "jitter_s", "link_delay_s")
            changes |= {name: scaled(getattr(self, name), slowdown) for name in times}
        return self.replace(**changes)
