"""A spec without the domains that cannot be had: with them go the clients that would have had their images.

The clients that stay close ranks: who was client 4 is client 3 where one before it has gone. What a spec lists by the
number of a seat or home (`losses`, latencies, links, `test_fraction`, traces) goes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import lcm
from typing import Any

from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.core.validation import explain
from shared.simulation import DeviceSpec, ProfileSpec, Trace
from shared.spec.experiment import ExperimentSpec
from shared.spec.fields import Loss
from shared.training.data.digit_domains import names_of
from shared.training.partition import ByDomainPartition

Renumber = Callable[[int], int | None]
"""A seat's number -> the one that it has now, None if it has gone."""


def without(spec: ExperimentSpec, gone: Collection[str]) -> ExperimentSpec:
    """The spec without some of its sets.

    Raises:
        BadInput: no set or no client is left, or what is left does not fit together.
    """
    if not gone:
        return spec
    try:
        return spec.replace(**_changes(spec, gone))
    except ValidationError as error:
        raise explain(error, ExperimentSpec) from None


def _changes(spec: ExperimentSpec, gone: Collection[str]) -> dict[str, Any]:
    names = names_of(spec.data)
    left = _left(names, gone, "the data's domains")
    changes: dict[str, Any] = {"data": spec.data.replace(domains=left)}
    test_on = [name for name in spec.test_on if name not in gone]
    if isinstance(spec.partition, ByDomainPartition):
        wanted = spec.partition.domains or names
        having = _left(wanted, gone, "the domains that clients have")
        named = having if spec.partition.domains else None
        changes["partition"] = spec.partition.model_copy(update={"domains": named})
        test_on = [name for name in test_on if name != "unseen" or {*left} - {*having}]
        changes |= (_edges if spec.client == "edge" else _devices)(spec, wanted, gone)
    return {**changes, "test_on": tuple(test_on)}


def _left(names: Sequence[str], gone: Collection[str], what: str) -> tuple[str, ...]:
    left = tuple(name for name in names if name not in gone)
    if not left:
        raise BadInput(f"of {what} ({', '.join(dict.fromkeys(names))}) none is there", field="data.domains")
    return left


def _staying(n: int, wanted: Sequence[str], gone: Collection[str]) -> list[int]:
    """Which of n clients have a domain that is there.

    Raises:
        BadInput: none.
    """
    of = [wanted[client % len(wanted)] for client in range(n)]
    _left(of[: len(wanted)], gone, "the domains that clients have")
    return [client for client, domain in enumerate(of) if domain not in gone]


def _devices(spec: ExperimentSpec, wanted: Sequence[str], gone: Collection[str]) -> dict[str, Any]:
    """What changes where devices are the clients; of a number that is still open none has gone."""
    n_seats = spec.max_devices or spec.num_devices
    if n_seats is None:
        return {}
    kept = _staying(n_seats, wanted, gone)
    n_first = spec.num_devices and len(_staying(spec.num_devices, wanted, gone))
    n_most = spec.max_devices and len(kept)
    some = n_first or len(kept)
    n_edges = None if spec.num_edges is None else min(spec.num_edges, some)
    near = _near(spec.devices, kept, None if n_edges is None else range(n_edges))
    now = {seat: number for number, seat in enumerate(kept)}
    return {
        "num_devices": n_first,
        "max_devices": n_most,
        "min_devices": min(spec.min_devices, some),
        "num_edges": n_edges,
        "losses": _losses(spec, now.get),
        "devices": _traced(near, kept, len(wanted)),
        **_test_fraction(spec, kept, len(wanted)),
    }


def _edges(spec: ExperimentSpec, wanted: Sequence[str], gone: Collection[str]) -> dict[str, Any]:
    """What changes where edges are the clients: devices stay, the edges' own workers go with their edges."""
    if spec.num_edges is None:
        return {}
    kept = _staying(spec.num_edges, wanted, gone)
    links, n_devices = spec.edge_link.by_home, spec.max_devices or spec.num_devices
    now = {edge: number for number, edge in enumerate(kept)}

    def renumbered(seat: int) -> int | None:
        if n_devices is None or seat < n_devices:
            return seat
        edge = now.get(seat - n_devices)
        return None if edge is None else n_devices + edge

    return {
        "num_edges": len(kept),
        "losses": _losses(spec, renumbered),
        "devices": _near(spec.devices, None, kept),
        "edge_link": spec.edge_link.replace(by_home=tuple(links[edge] for edge in kept if edge < len(links))),
        **_test_fraction(spec, kept, len(wanted)),
    }


# ---- what is listed by number


def _losses(spec: ExperimentSpec, now: Renumber) -> tuple[Loss, ...]:
    """The losses of the seats that stay, by their new numbers."""
    found = [(loss, tuple(n for n in map(now, loss.seats) if n is not None)) for loss in spec.losses]
    return tuple(loss.replace(seats=seats) for loss, seats in found if seats)


def _near(devices: DeviceSpec, seats: Sequence[int] | None, edges: Sequence[int] | None) -> DeviceSpec:
    """Listed latencies of these seats to these edges; None = all."""
    table = devices.edge_latency_s
    if not isinstance(table, tuple):
        return devices
    rows = table if seats is None else [table[seat] for seat in seats]
    return devices.replace(edge_latency_s=tuple(r if edges is None else tuple(r[edge] for edge in edges) for r in rows))


def _in_turn(items: Sequence[Any], kept: Sequence[int], n_domains: int) -> tuple[Any, ...]:
    """A list that clients take in turn, such that each that stays still gets its own; as long as it repeats."""
    again = lcm(len(items), n_domains)
    return tuple(items[number % len(items)] for number in kept if number < again)


def _test_fraction(spec: ExperimentSpec, kept: Sequence[int], n_domains: int) -> Mapping[str, Any]:
    parts = spec.test_fraction
    return {"test_fraction": _in_turn(parts, kept, n_domains)} if isinstance(parts, tuple) else {}


def _traced(devices: DeviceSpec, kept: Sequence[int], n_domains: int) -> DeviceSpec:
    """Devices whose profiles' traces are those of the seats that stay."""

    def of(profile: ProfileSpec) -> ProfileSpec:
        when = profile.availability
        if not isinstance(when, Trace) or len(when.traces) == 1:
            return profile
        return profile.replace(availability=when.replace(traces=_in_turn(when.traces, kept, n_domains)))

    return devices.replace(
        profile=devices.profile and of(devices.profile),
        profiles=tuple(part.replace(profile=of(part.profile)) for part in devices.profiles),
    )
