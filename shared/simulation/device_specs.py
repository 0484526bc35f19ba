"""Devices and links as a spec describes them: a name from the catalogue, and values that replace the catalogue's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from shared.core.formatting import counted
from shared.core.records import LEFT_OUT, Record
from shared.core.validation import check_known
from shared.simulation.availability import Availability
from shared.simulation.device_file import DeviceFile
from shared.simulation.distributions import MAX_QUANTITY, Positive, Quantity, QuantityOrTable, Uniform
from shared.simulation.load import Load
from shared.simulation.profile import Joules, Name, Slows
from shared.simulation.profile_catalogue import AGENT, LINKS, PROFILES, STANDARD


def _by_name(raw: Any) -> Any:
    """Expand the short form: `profile: jetson` is `{name: jetson}`."""
    return {"name": raw} if isinstance(raw, str) else raw


class LinkSpec(Record):
    """A named link, with values that replace the catalogue's. Distributions are drawn once for each edge.

    Attributes:
        name: the catalogue's name of the link.
        up_bps, down_bps: bandwidth towards the cloud and away from it, in bits a second.
        latency_s: one-way latency.
        jitter_s: a transfer's latency is uniform within this distance of `latency_s`.
        link_delay_s: delay added to each transfer towards the cloud.
    """

    name: Name = "backhaul"
    up_bps: Positive | None = None
    down_bps: Positive | None = None
    latency_s: Quantity | None = None
    jitter_s: Quantity | None = None
    link_delay_s: Quantity | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        check_known("link", self.name, LINKS)
        return self


class EdgeLinkSpec(LinkSpec):
    """The links between the edges and the cloud, and the edges' own workers.

    Attributes:
        worker_sps: compute of an edge's own worker, in training samples of the reference model a second.
        by_home: links of the first edges, in order; the other edges have this one.
    """

    worker_sps: Annotated[float, Field(gt=0, le=1e12)] = 2000.0
    by_home: Annotated[tuple[Annotated[LinkSpec, BeforeValidator(_by_name)], ...], Field(max_length=1000)] = ()

    def link_of_edge(self, edge: int) -> LinkSpec:
        """Return the link of the edge with this number."""
        return self.by_home[edge] if edge < len(self.by_home) else self


class ProfileSpec(Record):
    """A named profile, with values that replace the catalogue's.

    Distributions are drawn once for each device; those of `delay_s` and `link_delay_s`, anew for each task.

    Attributes:
        name: the catalogue's name of the profile, or `agent`: each device has its agent's.
        label: the profile's name in records; None means `name`.
        link: a named link that replaces the profile's own.
        compute_sps: compute, in training samples of the reference model a second.
        up_bps, down_bps: bandwidth towards the cloud and away from it, in bits a second.
        latency_s: one-way latency of the link.
        jitter_s: a transfer's latency is uniform within this distance of `latency_s`.
        link_delay_s: delay added to each transfer towards the cloud.
        delay_s: delay added to the training of each task.
        availability: when the device is on.
        load: which share of its compute is free at which time.
        battery_j: energy for the tasks of a run; None means unlimited.
        drop_rate: probability that a task is dropped.
        j_per_flop: energy of a floating-point operation in training.
        j_per_byte_up, j_per_byte_down: energy to send and to receive a byte.
    """

    name: Name = STANDARD
    label: Name | None = None
    link: str | None = None
    compute_sps: Positive | None = None
    up_bps: Positive | None = None
    down_bps: Positive | None = None
    latency_s: Quantity | None = None
    jitter_s: Quantity | None = None
    link_delay_s: Quantity | None = None
    delay_s: Quantity | None = None
    availability: Availability | None = None
    load: Load | None = None
    battery_j: Annotated[float, Field(gt=0, le=MAX_QUANTITY)] | None = None
    drop_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    j_per_flop: Joules | None = None
    j_per_byte_up: Joules | None = None
    j_per_byte_down: Joules | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name == AGENT and self.model_fields_set - {"name"} and self != ProfileSpec(name=AGENT):
            raise ValueError("`agent` takes the profile of the device's agent: it allows no other values")
        if self.name != AGENT:
            check_known("profile", self.name, PROFILES)
        if self.link is not None:
            check_known("link", self.link, LINKS)
        return self


class ShareSpec(Record):
    """A part of a mixture of profiles.

    Attributes:
        profile: the profile.
        share: share of the devices that have it.
    """

    profile: Annotated[ProfileSpec, BeforeValidator(_by_name)]
    share: Annotated[float, Field(gt=0, le=1)]


class DeviceSpec(Record):
    """The devices of an experiment.

    Attributes:
        profile: the profile of every device. None means the mixture in `profiles`; without one, those of the agents if
            one of them names another than `standard`, else `standard`.
        file: measured devices: the figures of each device's row replace those of its profile.
        profiles: a mixture: exact counts by largest remainder over `num_devices` devices in seeded order; each further
            device takes the profile that is furthest behind its share.
        straggler_ratio: share of the devices that are stragglers, counted like a mixture.
        straggler_slowdown: factor by which stragglers are slower.
        straggler_slows: what of them is slower: `compute`, their `link`, or a whole task (`visit`). None means a whole
            task; of a run that began before there was a choice, compute.
        edge_latency_s: one-way latency from a device to each edge in addition to its own link's. It is drawn for each
            device and edge, or a table with a row for each device and a column for each edge.
    """

    profile: Annotated[ProfileSpec, BeforeValidator(_by_name)] | None = None
    file: Annotated[DeviceFile | None, LEFT_OUT] = None
    profiles: Annotated[tuple[ShareSpec, ...], Field(max_length=1000)] = ()
    straggler_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    straggler_slowdown: Annotated[float, Field(ge=1, le=1e6)] = 8.0
    straggler_slows: Annotated[Slows | None, LEFT_OUT] = None
    edge_latency_s: QuantityOrTable = Uniform(low=0.001, high=0.1)

    @model_validator(mode="after")
    def _one_or_a_mixture(self) -> DeviceSpec:
        if self.profiles and self.profile is not None:
            raise ValueError("either `profile` for all devices, or `profiles` with shares")
        if any(part.profile.name == AGENT for part in self.profiles):
            raise ValueError("`agent` applies to all devices (`profile: agent`); it cannot be part of a mixture")
        total = sum(part.share for part in self.profiles)
        if self.profiles and abs(total - 1) > 1e-9:
            raise ValueError(f"the shares of `profiles` add up to {total:g}, not to 1")
        return self

    @model_validator(mode="after")
    def _of_a_file(self) -> DeviceSpec:
        if self.file is None:
            return self
        if self.profiles or self.by_agent:
            raise ValueError("`file` has the figures of each device: no `profiles` and no `profile: agent` beside it")
        given = [name for name in self.file.devices.columns if getattr(self.profile, name, None) is not None]
        if given:
            raise ValueError(f"profile.{given[0]}: {self.file.path} has a column {given[0]}, which gives this figure")
        return self

    def check_latencies(self, n_seats: int | None, n_edges: int | None) -> None:
        """Check that listed latencies match the numbers of devices and edges, as far as these are known.

        Raises:
            ValueError: there are too few or too many of them; names the device.
        """
        table = self.edge_latency_s
        if not isinstance(table, tuple):
            return
        if len(table) != (n_seats or len(table) or 1):
            found = counted(len(table), "row")
            raise ValueError(f"devices.edge_latency_s has {found} instead of {n_seats or 'at least one'}")
        due = n_edges or len(table[0]) or 1
        for seat, row in enumerate(table):
            if len(row) != due:
                raise ValueError(f"devices.edge_latency_s: device {seat} has {len(row)} latencies instead of {due}")

    def check_rows(self, n_seats: int | None) -> None:
        """Check that a file whose rows the devices have in order has enough of them, as far as their number is known.

        Raises:
            ValueError: there are fewer rows than devices.
        """
        if self.file is not None:
            self.file.check_rows(n_seats or 1)

    def resolved(self, profiles: Iterable[str]) -> Self:
        """Return the devices of a run whose agents have these profiles, which count where the spec names none."""
        changes: dict[str, Any] = {}
        if self.profile is None and self.file is None and not self.profiles and not set(profiles) <= {STANDARD}:
            changes["profile"] = ProfileSpec(name=AGENT)
        if self.straggler_ratio and self.straggler_slows is None:
            changes["straggler_slows"] = "visit"
        return self.replace(**changes) if changes else self

    @property
    def by_agent(self) -> bool:
        """Whether each device has the profile of the agent that hosts it."""
        return self.profile is not None and self.profile.name == AGENT

    @property
    def mixture(self) -> tuple[ShareSpec, ...]:
        """The profiles with their shares; a single profile has the share 1."""
        return self.profiles or (ShareSpec(profile=self.profile or ProfileSpec(), share=1.0),)
