"""Links and profiles as a seat, or an edge, has them: figures, drawn where the spec names a distribution."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.core.records import Record
from shared.simulation.availability import Always, Availability
from shared.simulation.distributions import MOST, Quantity
from shared.simulation.load import Load, NoLoad

REFERENCE_FLOPS = 24_680_448
"""FLOPs of training the reference model on one sample: `cnn_mnist` on 1x28x28 images of 10 classes, as
`shared.training.flops` counts them. `compute_sps` is in samples of this model."""

Bps = Annotated[float, Field(gt=0, le=MOST)]
Sps = Annotated[float, Field(gt=0, le=MOST)]
Seconds = Annotated[float, Field(ge=0, le=MOST)]
Joules = Annotated[float, Field(ge=0, le=1e3)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class Link(Record):
    """What a link can do; links do not share bandwidth.

    Attributes:
        up_bps, down_bps: bandwidth towards the cloud and away from it, bits a second.
        latency_s: of the link itself, one way.
        jitter_s: a transfer's latency is drawn uniformly from so much below to so much above, not below 0.
        link_delay_s: added to what is sent up, drawn anew for every sending.
        j_per_byte_up, j_per_byte_down: energy that sending and receiving a byte takes at the lower end.
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
    """What a device and its link can do.

    Attributes:
        compute_sps: training samples of the reference model a second, slowed down already where it is a straggler.
        slowdown: by what; 1 for those that are none.
        delay_s: added to the work of every visit, drawn anew for each.
        availability: when it is there.
        load: which share of its compute is free when.
        battery_j: energy for the visits of a run; None = as much as they take.
        drop_rate: chance of a visit to be dropped.
        j_per_flop: energy of a floating-point operation in training.
    """

    compute_sps: Sps = 500.0
    slowdown: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    delay_s: Quantity = 0.0
    availability: Availability = Always()
    load: Load = NoLoad()
    battery_j: Annotated[float, Field(gt=0, le=MOST)] | None = None
    drop_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    j_per_flop: Joules = 0.0
