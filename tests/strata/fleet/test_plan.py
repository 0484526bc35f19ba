"""The fleet's plan: which agents stay, stop and start."""

from __future__ import annotations

import itertools

import pytest

from shared.core.errors import BadInput
from strata.fleet.plan import Agent, Plan, Service, plan

ANY = Service(each=5, exactly=False)


def agents(*sizes: int) -> list[Agent]:
    return [Agent(f"agent-{number}", "device", size, number) for number, size in enumerate(sizes, start=1)]


@pytest.mark.parametrize(
    ("service", "sizes", "wanted", "stop", "start"),
    [
        (Service(), (1, 1, 1), 3, [], ()),
        (Service(), (1, 1, 1), 5, [], (1, 1)),
        (Service(), (1, 1, 1), 1, [3, 2], ()),
        (Service(), (1, 1, 1), 0, [3, 2, 1], ()),
        (Service(), (), 2, [], (1, 1)),
        (Service(each=4), (4, 4), 12, [], (4,)),
        (ANY, (5, 5), 12, [], (2,)),
        (ANY, (5, 5), 22, [], (4, 4, 4)),
        (ANY, (5, 5), 8, [2], (3,)),
        (ANY, (5, 5), 4, [2, 1], (4,)),
        (ANY, (5, 5), 3, [2, 1], (3,)),
        (ANY, (5, 5, 2), 7, [2], ()),
        (ANY, (5, 5, 2), 10, [3], ()),
    ],
)
def test_the_newest_agents_are_stopped_first_and_the_number_is_reached_exactly(
    service: Service, sizes: tuple[int, ...], wanted: int, stop: list[int], start: tuple[int, ...]
) -> None:
    found = plan(agents(*sizes), wanted, service)
    assert ([agent.number for agent in found.stop], found.start) == (stop, start)


def test_every_plan_reaches_the_wanted_number_and_is_then_stable() -> None:
    for sizes in itertools.product((1, 2, 5), repeat=3):
        for wanted in range(20):
            running = agents(*sizes)
            found = plan(running, wanted, ANY)
            stay = [agent.devices for agent in running if agent not in found.stop]
            after = agents(*stay, *found.start)
            assert sum(agent.devices for agent in after) == wanted
            assert max(found.start, default=0) <= 5
            assert plan(after, wanted, ANY) == Plan()
            # Each started agent is smaller than every stopped one: no agent is stopped and started again.
            assert all(agent.devices > start for agent in found.stop for start in found.start)


def test_a_number_that_full_agents_cannot_reach_is_refused_before_any_change() -> None:
    for sizes, wanted in (((4, 4), 10), ((4, 4, 4), 6)):
        with pytest.raises(BadInput, match=f"{wanted} devices cannot be made up of agents that host 4 each"):
            plan(agents(*sizes), wanted, Service(each=4))
