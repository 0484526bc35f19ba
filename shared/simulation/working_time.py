"""How long work takes under a load that changes while a task runs (`during_tasks`).

Work of W seconds at full compute that begins at t takes the T for which the integral of the free share from t to t + T
is W; the share counts as at least `MIN_FREE`. `steps` and `random_walk` are summed piece by piece. The integral of
`sinus` is that of its antiderivative, which grows, so that bisection inverts it to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, islice, pairwise

from shared.simulation.distributions import Seeds
from shared.simulation.load import MIN_FREE, Load, NoLoad, RandomWalk, Sinus, Steps, pieces

MAX_PIECES = 10_000
"""After this many changes of the share within one task, the rest of it counts with the mean share."""
_TURN = 2 * math.pi


def working_s(load: Load, begin_s: float, work_s: float, seeds: Seeds) -> float:
    """Return the seconds that work takes under a load.

    Args:
        load: the load in the device's profile.
        begin_s: simulated seconds since the run began.
        work_s: seconds that the work takes if all compute is free.
        seeds: the device's random streams in this run.
    """
    if not work_s or isinstance(load, NoLoad):
        return work_s
    if load.low == load.high:
        return work_s / max(load.low, MIN_FREE)
    if isinstance(load, Sinus):
        return _sine_s(load, begin_s, work_s, seeds)
    left_s, took_s = work_s, 0.0
    for duration_s, share in _shares(load, begin_s, seeds):
        if left_s <= duration_s * share:
            return took_s + left_s / share
        left_s, took_s = left_s - duration_s * share, took_s + duration_s
    raise AssertionError("the last piece has no end")


def work_done_s(load: Load, begin_s: float, took_s: float, seeds: Seeds) -> float:
    """Return how much is done after `took_s` seconds: the inverse of `working_s`."""
    if isinstance(load, NoLoad):
        return took_s
    if load.low == load.high:
        return took_s * max(load.low, MIN_FREE)
    if isinstance(load, Sinus):
        angle, scale = _angle(load, begin_s, seeds), load.period_s / _TURN
        whole, rest = divmod(took_s / scale, _TURN)
        return scale * (whole * _area(load, angle, _TURN) + _area(load, angle, rest))
    done_s = 0.0
    for duration_s, share in _shares(load, begin_s, seeds):
        if took_s <= duration_s:
            return done_s + took_s * share
        done_s, took_s = done_s + duration_s * share, took_s - duration_s
    raise AssertionError("the last piece has no end")


def _shares(load: Steps | RandomWalk, begin_s: float, seeds: Seeds) -> Iterator[tuple[float, float]]:
    """Yield seconds and free share of each piece from `begin_s` on; the last one has no end."""
    mean = (math.inf, (load.low + load.high) / 2)
    for duration_s, share in chain(islice(pieces(load, begin_s, seeds), MAX_PIECES), [mean]):
        yield duration_s, max(share, MIN_FREE)


# ---- a sine, by its angle: free share = middle - half * cos(angle)


def _angle(load: Sinus, at_s: float, seeds: Seeds) -> float:
    """Return the angle at an instant, in -pi to pi; the least share is at angle 0."""
    turn = load.turn(at_s, seeds) + 0.25
    return _TURN * ((turn + 0.5) % 1 - 0.5)


def _area(load: Sinus, angle: float, width: float) -> float:
    """Return the integral of the free share over `width`, at most one turn, from an angle on.

    Around its least value, where the share is below `MIN_FREE`, it counts as `MIN_FREE`.
    """
    middle, half = (load.low + load.high) / 2, (load.high - load.low) / 2
    clipped = math.acos(min(max((middle - MIN_FREE) / half, -1.0), 1.0))
    cuts = (sign * clipped + turn * _TURN - angle for turn in (0, 1) for sign in (-1, 1))
    ends = [0.0, *sorted(cut for cut in cuts if 0 < cut < width), width]
    return math.fsum(_segment(angle + a, b - a, middle, half, clipped) for a, b in pairwise(ends))


def _segment(angle: float, width: float, middle: float, half: float, clipped: float) -> float:
    """Return the integral over a segment on which the share is either below `MIN_FREE` or not."""
    centre = angle + width / 2
    if math.cos(centre) > math.cos(clipped):
        return MIN_FREE * width
    return middle * width - 2 * half * math.cos(centre) * math.sin(width / 2)


def _sine_s(load: Sinus, begin_s: float, work_s: float, seeds: Seeds) -> float:
    angle, scale = _angle(load, begin_s, seeds), load.period_s / _TURN
    whole, rest = divmod(work_s / scale, _area(load, angle, _TURN))
    least, most = max(load.low, MIN_FREE), max(load.high, MIN_FREE)
    low, high = rest / most, min(rest / least, _TURN)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _area(load, angle, middle) < rest else (low, middle)
    return scale * (whole * _TURN + high)
