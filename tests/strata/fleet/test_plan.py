"""The fleet's plan: which agents stay, stop and start."""

from __future__ import annotations

import itertools

import pytest

from shared.core.errors import BadInput
from strata.fleet.plan import Agent, Plan, Service, plan

ANY = Service(each=5, exactly=False)


def agents(*rooms: int) -> list[Agent]:
    return [Agent(f"agent-{number}", "device", room, number) for number, room in enumerate(rooms, start=1)]


def told(found: Plan) -> tuple[list[int], tuple[int, ...]]:
    return [agent.number for agent in found.stop], found.start


@pytest.mark.parametrize(
    ("rooms", "wanted", "stop", "start"),
    [
        ((1, 1, 1), 3, [], ()),
        ((1, 1, 1), 5, [], (1, 1)),
        ((1, 1, 1), 1, [3, 2], ()),
        ((1, 1, 1), 0, [3, 2, 1], ()),
        ((), 2, [], (1, 1)),
    ],
)
def test_the_newest_agents_are_stopped_first_and_missing_ones_started(
    rooms: tuple[int, ...], wanted: int, stop: list[int], start: tuple[int, ...]
) -> None:
    assert told(plan(agents(*rooms), wanted, Service())) == (stop, start)


@pytest.mark.parametrize(
    ("rooms", "wanted", "stop", "start"),
    [
        ((5, 5), 12, [], (2,)),
        ((5, 5), 22, [], (4, 4, 4)),
        ((5, 5), 8, [2], (3,)),
        ((5, 5), 4, [2, 1], (4,)),
        ((5, 5), 3, [2, 1], (3,)),
        ((5, 5, 2), 7, [2], ()),
        ((5, 5, 2), 10, [3], ()),
    ],
)
def test_with_agents_of_any_size_the_number_is_reached_exactly(
    rooms: tuple[int, ...], wanted: int, stop: list[int], start: tuple[int, ...]
) -> None:
    assert told(plan(agents(*rooms), wanted, ANY)) == (stop, start)


def test_every_plan_reaches_the_wanted_number_and_is_then_stable() -> None:
    for rooms in itertools.product((1, 2, 5), repeat=3):
        for wanted in range(20):
            running = agents(*rooms)
            found = plan(running, wanted, ANY)
            stay = [agent.devices for agent in running if agent not in found.stop]
            after = agents(*stay, *found.start)
            assert sum(agent.devices for agent in after) == wanted
            assert max(found.start, default=0) <= 5
            assert plan(after, wanted, ANY) == Plan()
            # Each started agent is smaller than every stopped one: no agent is stopped and started again.
            assert all(agent.devices > start for agent in found.stop for start in found.start)


def test_a_number_that_full_agents_cannot_reach_is_refused_before_any_change() -> None:
    four = Service(each=4)
    assert told(plan(agents(4, 4), 12, four)) == ([], (4,))
    with pytest.raises(BadInput, match="10 devices cannot be made up of agents that host 4 each"):
        plan(agents(4, 4), 10, four)
    with pytest.raises(BadInput, match="host 4 each"):
        plan(agents(4, 4, 4), 6, four)
