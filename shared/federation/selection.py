"""Selection policies: which seats train in an edge round, by the spec's `select`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.core.errors import BadInput
from shared.core.plugins import Kind, Value
from shared.core.user_code import user_code
from shared.federation.context import Context, EdgeView
from shared.federation.population import Seat, by_home_edge, numbers_of
from shared.federation.visit_estimates import expected, plain_task, samples_due
from shared.spec.experiment import ExperimentSpec

Choice = Callable[[Context, Sequence[Seat], EdgeView], list[int]]


@dataclass(frozen=True, kw_only=True)
class SelectionPolicy(Value):
    """A way to select the seats that train.

    Attributes:
        choose: returns the numbers of the selected seats; with `params`, their values are its last argument.
        uses_losses: whether it uses `view.losses`; if so, an edge keeps the losses between rounds.
    """

    choose: Callable[..., list[int]]
    uses_losses: bool = False


def select(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """The numbers of the seats that train in this edge round, by the spec's `select`.

    Raises:
        BadInput: a plug-in's policy returns no list of numbers, a seat twice, or one that it was not given.
    """
    policy = POLICIES.get(ctx.spec.select)
    params = policy.parse(ctx.spec.select_params, "select_params")
    with user_code(f"the selection policy {policy.name}", "select"):
        chosen = policy.choose(ctx, seats, view) if params is None else policy.choose(ctx, seats, view, params)
    if (
        policy.name in SELECTION
    ):  # to check a choice, every seat has to be made: of a million, as many as a run may have
        return chosen
    return _checked(policy.name, chosen, {seat.number for seat in seats})


def _checked(name: str, chosen: Any, known: Set[int]) -> list[int]:
    """The numbers of the seats that a plug-in's policy selects, as Python's own integers: numpy's do not travel."""
    if not isinstance(chosen, list | tuple | np.ndarray | Set):
        raise BadInput(
            f"select: {name} returns a {type(chosen).__name__}, not a list of device numbers", field="select"
        )
    odd = [each for each in chosen if not isinstance(each, int | np.integer) or isinstance(each, bool)]
    if odd:
        raise BadInput(f"select: {name} returns {odd[0]!r:.60}, not a device number", field="select")
    numbers = [int(each) for each in chosen]
    if len(set(numbers)) < len(numbers) or not set(numbers) <= known:
        raise BadInput(f"select: {name} selects a device twice, or one that the edge does not have", field="select")
    return numbers


def check_selection(spec: ExperimentSpec) -> None:
    """Checks the name and the parameters of the spec's selection policy.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    POLICIES.get(spec.select).parse(spec.select_params, "select_params")


def uses_losses(spec: ExperimentSpec) -> bool:
    """Whether the spec's selection policy uses the training losses of earlier visits."""
    return POLICIES.get(spec.select).uses_losses


def n_wanted(ctx: Context, seats: Sequence[Seat]) -> int:
    """Number of updates that an edge round needs from these seats; with `overselection` more seats are selected."""
    if ctx.spec.select == "all":
        return len(seats)
    return sum(_fraction_of(ctx, len(own)) for own in by_home_edge(seats).values())


def _all(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    numbers: list[int] = numbers_of(seats).tolist()
    return numbers


def within_home_edges(choose: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """A policy that selects among the seats of each home edge separately.

    Seats that visit this edge because their home edge is lost are selected as they would have been there: faults do
    not change the selection.
    """

    def select(ctx: Context, seats: Sequence[Seat], view: EdgeView, *params: Any) -> list[int]:
        parts = [choose(ctx.at(edge=edge), own, view, *params) for edge, own in by_home_edge(seats).items()]
        return sorted(number for part in parts for number in part)

    return select


def _random(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """Draws `fraction_train` of the seats (FedAvg's C), at least one, without replacement."""
    n = n_chosen(ctx, len(seats))
    chosen = ctx.numpy_rng("select").choice(len(seats), size=n, replace=False)
    selected: list[int] = numbers_of(seats)[chosen].tolist()
    return selected


def _fastest(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """As many seats as `random`: those with the shortest expected visits; of equals the lower seats."""
    task = plain_task(ctx)
    took = {seat.number: expected(ctx, seat, samples_due(ctx, task, seat)).simulated_s for seat in seats}
    return sorted(took, key=lambda number: (took[number], number))[: n_chosen(ctx, len(seats))]


def _power_of_choice(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """As many seats as `random`: those with the highest known loss among candidates drawn in proportion to samples.

    Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
    Strategies, 2020, with the losses that clients sent last (their variant rpow-d). A seat that has not sent a loss
    yet comes before all others; of equals the lower seat.
    """
    holds = [seat for seat in seats if seat.n_train]
    weights = np.array([seat.n_train for seat in holds], np.float64)
    n = min(n_chosen(ctx, len(seats)), len(holds))
    share = ctx.spec.fraction_candidates or min(2 * ctx.spec.fraction_train, 1.0)
    d = min(max(round(share * len(holds)), n), len(holds))
    if not d:
        return []
    drawn = ctx.numpy_rng("select").choice(len(holds), size=d, replace=False, p=weights / weights.sum())
    candidates = [holds[i].number for i in drawn]
    return sorted(candidates, key=lambda number: (-view.losses.get(number, math.inf), number))[:n]


def n_chosen(ctx: Context, n: int) -> int:
    """Number of seats to select of n: the spec's `fraction_train` of them, at least one, plus `overselection`."""
    return min(_beyond(ctx, _fraction_of(ctx, n)), n)


def _fraction_of(ctx: Context, n: int) -> int:
    return min(max(round(ctx.spec.fraction_train * n), 1), n)


def _beyond(ctx: Context, n: int) -> int:
    """n plus `overselection`, rounded up; the small term keeps 1.12 * 25 from becoming 29 by floating point."""
    return math.ceil(n * (1 + ctx.spec.overselection) - 1e-9)


SELECTION: dict[str, SelectionPolicy] = {
    policy.name: policy
    for policy in (
        SelectionPolicy(name="all", description="All devices of the edge.", choose=_all),
        SelectionPolicy(
            name="random", description="A share of the devices, drawn at random.", choose=within_home_edges(_random)
        ),
        SelectionPolicy(
            name="fastest",
            description="As many devices as `random`: those with the shortest expected tasks.",
            choose=within_home_edges(_fastest),
        ),
        SelectionPolicy(
            name="power_of_choice",
            description="As many devices as `random`: of candidates those with the highest loss.",
            choose=within_home_edges(_power_of_choice),
            uses_losses=True,
        ),
    )
}
POLICIES: Kind[SelectionPolicy] = Kind(
    SelectionPolicy, "selection policy", "select", lambda: SELECTION, lambda name: SELECTION[name]
)
