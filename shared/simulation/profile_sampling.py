"""From a spec to numbers: which seat has which profile, with its distributions drawn.

A seat's draws come from its own streams, so that further seats (`max_devices`) change no other seat's profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from shared.core.apportionment import largest_remainder
from shared.simulation.device_file import MEASURED
from shared.simulation.device_specs import DeviceSpec, LinkSpec, ProfileSpec
from shared.simulation.distributions import MIN_QUANTITY, Quantity, Seeds, drawn, uniform01
from shared.simulation.profile import Link, Profile
from shared.simulation.profile_catalogue import AGENT, LINKS, PROFILES, STANDARD

_NO_VALUES = frozenset({"name", "label", "link"})
_DIVIDED_BY = frozenset({"compute_sps", "up_bps", "down_bps"})


Profiles = Callable[[int], Profile]
"""Maps the number of a seat to its profile."""


def profiles_of(devices: DeviceSpec, n_first: int, n_seats: int, seeds: Callable[[str], Seeds]) -> Profiles:
    """Return the profiles of the seats, with shares that are exact.

    Args:
        devices: the devices in the spec.
        n_first: number of seats at the start (`num_devices`), over which shares are exact.
        n_seats: number of seats in all.
        seeds: maps `seat 0`, `seat 1`, ... to the streams of a seat, and `all` to those of all seats together.
    """
    mixture, measured, slow_down = devices.mixture, _measured(devices, seeds("all")), _slowing(devices)
    kinds = apportioned([part.share for part in mixture], n_first, n_seats, seeds("all")("profiles"))
    slow = apportioned(_slow_shares(devices), n_first, n_seats, seeds("all")("stragglers"))

    def profile(seat: int) -> Profile:
        found = profile_of(mixture[kinds[seat]].profile, seeds(f"seat {seat}"))
        return slow_down(measured(found, seat), slow[seat])

    return profile


def drawn_profiles(devices: DeviceSpec, seeds: Callable[[str], Seeds]) -> Profiles:
    """Return the profiles of any number of seats: each draws its part of the mixture from its own stream."""
    mixture, measured, slow_down = devices.mixture, _measured(devices, seeds("all")), _slowing(devices)
    kind_of, slow_of = _drawing([part.share for part in mixture]), _drawing(_slow_shares(devices))

    def profile(seat: int) -> Profile:
        own = seeds(f"seat {seat}")
        found = profile_of(mixture[kind_of(own, "profile")].profile, own)
        return slow_down(measured(found, seat), slow_of(own, "straggler"))

    return profile


def _measured(devices: DeviceSpec, seeds: Seeds) -> Callable[[Profile, int], Profile]:
    """Return a function from a profile, and the number of its seat, to the profile with the figures of the seat's row.

    Without a file of devices it returns the profile itself.
    """
    if devices.file is None:
        return lambda profile, seat: profile
    row_of, label = devices.file.row_of(seeds), devices.profile and devices.profile.label
    return lambda profile, seat: profile.replace(name=label or MEASURED, **row_of(seat))


def _slow_shares(devices: DeviceSpec) -> list[float]:
    return [1 - devices.straggler_ratio, devices.straggler_ratio]


def _slowing(devices: DeviceSpec) -> Callable[[Profile, int], Profile]:
    """Return a function from a profile, and whether its seat is a straggler, to the seat's profile."""
    slowdown, slows = devices.straggler_slowdown, devices.straggler_slows or "compute"
    return lambda profile, is_slow: profile.slowed(slowdown, slows) if is_slow and slowdown > 1 else profile


def _drawing(shares: Sequence[float]) -> Callable[[Seeds, str], int]:
    """Return a function that draws the index of one of several parts with these shares, for a purpose.

    The last part that has a share ends the search.
    """
    there = [index for index, share in enumerate(shares) if share]
    sums = np.cumsum([shares[index] for index in there])[:-1]
    if not len(sums):
        return lambda seeds, purpose: there[0]
    return lambda seeds, purpose: there[int(sums.searchsorted(uniform01(seeds(purpose)), side="right"))]


def profile_of(spec: ProfileSpec, seeds: Seeds) -> Profile:
    """Return one seat's profile, drawn from its streams."""
    base, distributions = _base(spec)
    if not distributions:
        return base  # the same object for all such seats
    return base.replace(**{name: _drawn(amount, seeds, name) for name, amount in distributions.items()})


@lru_cache(maxsize=256)
def _base(spec: ProfileSpec) -> tuple[Profile, dict[str, Any]]:
    """Return the profile before anything is drawn, and the fields that are."""
    values: dict[str, Any] = {"name": spec.label or spec.name}
    if spec.link is not None:
        values |= LINKS[spec.link].link.model_dump(exclude={"name"})
    own = {name: getattr(spec, name) for name in type(spec).model_fields if name not in _NO_VALUES}
    distributions = _distributions(spec)
    fixed = {name: v for name, v in own.items() if v is not None and name not in distributions}
    return catalogue_profile(spec.name).replace(**(values | fixed)), distributions


def catalogue_profile(name: str) -> Profile:
    """Return a profile of the catalogue; `agent` has no latency until the seat's agent is known."""
    return PROFILES[STANDARD].replace(name=AGENT, latency_s=0.0) if name == AGENT else PROFILES[name]


def _distributions(spec: ProfileSpec) -> dict[str, Any]:
    """Return the fields that are distributions and are drawn once."""
    amounts = ("compute_sps", "up_bps", "down_bps", "latency_s", "jitter_s")
    given = {name: getattr(spec, name, None) for name in amounts}
    return {name: v for name, v in given.items() if v is not None and not isinstance(v, int | float)}


def _drawn(amount: Quantity, seeds: Seeds, name: str) -> float:
    value = drawn(amount, seeds, name)
    return max(value, MIN_QUANTITY) if name in _DIVIDED_BY else value


def link_of(spec: LinkSpec, seeds: Seeds) -> Link:
    """Return the link of one edge, drawn from its streams."""
    names = ("up_bps", "down_bps", "latency_s", "jitter_s")
    given = {name: getattr(spec, name) for name in names if getattr(spec, name) is not None}
    values: dict[str, Quantity] = {name: _drawn(amount, seeds, name) for name, amount in given.items()}
    if spec.link_delay_s is not None:
        values["link_delay_s"] = spec.link_delay_s
    return LINKS[spec.name].link.replace(**values)


def apportioned(shares: Sequence[float], n_first: int, n_all: int, seed: int) -> list[int]:
    """Assign each of `n_all` seats to one of several parts with these shares.

    The first `n_first` seats are divided by largest remainder, in seeded order. Each further seat goes to the part that
    is then furthest behind its share (the first of several), so that a seat keeps its part however many come after it.
    """
    counts = largest_remainder(np.asarray(shares, np.float64), n_first)
    parts = np.repeat(np.arange(len(shares)), counts)
    found = [int(part) for part in np.random.default_rng(seed).permutation(parts)]
    have = counts.tolist()
    for n in range(n_first + 1, n_all + 1):
        behind = [share * n - count for share, count in zip(shares, have, strict=True)]
        part = max(range(len(shares)), key=lambda index: (round(behind[index], 9), -index))
        have[part] += 1
        found.append(part)
    return found
