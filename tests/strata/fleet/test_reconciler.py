"""The fleet's loop, with a backend and a cloud that only record their calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.core.errors import StrataError, Unreachable
from shared.service.api.membership import FleetOrders, FleetReport
from strata.fleet.plan import EDGES, Agent, Service
from strata.fleet.reconciler import Fleet


class FakeBackend:
    """Agents of one or more services in the given numbers; each has one device by default."""

    def __init__(self, n: int = 0, *, services: dict[str, Service] | None = None) -> None:
        self.found = services or {"device": Service()}
        self.running: list[Agent] = []
        self.did: list[str] = []
        self.why_not: str | Exception | None = None
        self.blind: str | None = None
        self.capacity = 10**6
        for _ in range(n):
            self.start("device", 1)
        self.did.clear()

    def services(self) -> dict[str, Service]:
        return self.found

    def agents(self) -> list[Agent]:
        if self.blind:
            raise StrataError(self.blind)
        return list(self.running)

    def check(self, n: int) -> None:
        if n > self.capacity:
            raise StrataError(f"no room for {n}")

    def start(self, service: str, devices: int) -> str:
        if self.why_not:
            self.did.append("fail")
            raise _error(self.why_not)
        number = max((agent.number for agent in self.running), default=0) + 1
        self.running.append(Agent(f"{service}-{number}", service, devices, number))
        self.did.append(f"start {service}-{number}")
        return f"{service}-{number}"

    def stop(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            self.did.append(f"stop {agent.name}")
            if self.why_not:
                raise _error(self.why_not)
            self.running.remove(agent)


def _error(why: str | Exception) -> Exception:
    return StrataError(why) if isinstance(why, str) else why


class FakeCloud:
    """Requests the given numbers, and releases leaving agents unless a round needs them."""

    def __init__(self, *, edges: int | None = None, **wanted: int) -> None:
        self.wanted, self.wanted_edges = wanted, edges
        self.needed: set[str] = set()
        self.is_down = False
        self.heard: list[FleetReport] = []

    def report(self, report: FleetReport) -> FleetOrders:
        if self.is_down:
            raise Unreachable("nobody listens")
        self.heard.append(report)
        released = tuple(name for name in report.leaving if name not in self.needed)
        return FleetOrders(wanted=dict(self.wanted), wanted_edges=self.wanted_edges, released=released)

    def last(self) -> FleetReport:
        """The newest report."""
        return self.heard[-1]


class Clock:
    """A clock that the test advances."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def fleet_of(backend: FakeBackend, cloud: FakeCloud, clock: Clock | None = None) -> Fleet:
    return Fleet("f", backend, cloud, drain_s=60.0, clock=clock or Clock())


def names(backend: FakeBackend) -> list[str]:
    return [agent.name for agent in backend.running]


def test_only_what_is_missing_is_started_and_without_a_wanted_number_nothing() -> None:
    backend, cloud = FakeBackend(3), FakeCloud()
    fleet = fleet_of(backend, cloud)
    fleet.settle()
    assert backend.did == []
    assert [agent.name for agent in cloud.heard[0].agents] == ["device-1", "device-2", "device-3"]
    assert cloud.heard[0].services == {"device": 1}
    cloud.wanted = {"device": 5}
    fleet.settle()
    fleet.settle()
    assert backend.did == ["start device-4", "start device-5"]


def test_agents_to_stop_are_announced_released_stopped_and_reported_in_this_order() -> None:
    backend, cloud = FakeBackend(4), FakeCloud(device=2)
    fleet = fleet_of(backend, cloud)
    assert fleet.turn()
    assert (backend.did, cloud.last().leaving) == ([], ())
    assert fleet.turn()
    assert cloud.last().leaving == ("device-3", "device-4")
    assert backend.did == ["stop device-4", "stop device-3"]  # the newest first
    assert not fleet.turn()
    assert (cloud.last().left, cloud.last().leaving) == (("device-3", "device-4"), ())
    fleet.turn()
    assert cloud.last().left == ()


def test_an_agent_needed_by_a_round_is_awaited_for_a_limited_time() -> None:
    backend, cloud, clock = FakeBackend(3), FakeCloud(device=1), Clock()
    cloud.needed = {"device-2", "device-3"}
    fleet = fleet_of(backend, cloud, clock)
    fleet.settle()
    cloud.needed = {"device-2"}
    clock.now += 59
    fleet.settle()
    assert names(backend) == ["device-1", "device-2"]
    clock.now += 2
    fleet.settle()
    assert names(backend) == ["device-1"]


def test_edges_are_started_like_agents_and_stopped_only_once_no_run_needs_them() -> None:
    backend, clock = FakeBackend(services={"device": Service(), "edge": EDGES}), Clock()
    cloud = FakeCloud(edges=3)
    fleet = fleet_of(backend, cloud, clock)
    fleet.settle()
    fleet.settle()
    last = cloud.last()
    assert (last.edges, last.agents, last.services) == (("edge-1", "edge-2", "edge-3"), (), {"device": 1})
    assert (last.wanted, last.wanted_edges) == ({}, 3)
    cloud.wanted, cloud.wanted_edges, cloud.needed = {"device": 1}, 1, {"edge-2"}
    fleet.settle()
    clock.now += 10 * 60.0  # ten times as long as a round is waited for
    fleet.settle()
    assert names(backend) == ["edge-1", "edge-2", "device-4"]
    assert (cloud.last().leaving, cloud.last().wanted_edges) == (("edge-2",), 1)
    cloud.needed = set()
    fleet.settle()
    fleet.settle()
    assert names(backend) == ["edge-1", "device-4"]
    assert cloud.last().edges == ("edge-1",)


def test_a_fleet_without_a_service_of_edges_says_so_and_passes_over_their_number() -> None:
    backend, cloud = FakeBackend(1), FakeCloud(edges=3)
    fleet_of(backend, cloud).settle()
    assert (cloud.last().edges, cloud.last().wanted_edges, backend.did) == (None, None, [])


def test_a_changed_number_keeps_agents_that_were_about_to_stop() -> None:
    backend, cloud = FakeBackend(4), FakeCloud(device=1)
    cloud.needed = {"device-2", "device-3", "device-4"}
    fleet = fleet_of(backend, cloud)
    fleet.settle()
    assert cloud.last().leaving == ("device-2", "device-3", "device-4")
    cloud.wanted = {"device": 3}
    fleet.settle()
    assert cloud.last().leaving == ("device-4",)
    cloud.needed.clear()
    fleet.settle()
    assert (names(backend), backend.did) == (["device-1", "device-2", "device-3"], ["stop device-4"])


def test_failed_starts_are_reported_and_retried_after_growing_pauses() -> None:
    backend, cloud, clock = FakeBackend(1), FakeCloud(device=2), Clock()
    backend.why_not = "no such image"
    fleet = fleet_of(backend, cloud, clock)
    tries = []
    for second in range(40):
        before = len(backend.did)
        fleet.turn()
        tries += [second] if len(backend.did) > before else []
        clock.now += 1
    assert tries == [0, 2, 6, 14, 30]
    assert cloud.last().error == "no such image"
    backend.why_not = None
    clock.now += 60
    fleet.turn()
    assert names(backend) == ["device-1", "device-2"]
    clock.now += 31
    fleet.turn()
    fleet.turn()
    assert cloud.last().error is None


def test_no_agent_is_started_unless_all_missing_ones_fit_into_memory() -> None:
    backend, cloud, clock = FakeBackend(2), FakeCloud(device=40), Clock()
    backend.capacity = 37
    fleet = fleet_of(backend, cloud, clock)
    fleet.turn()
    clock.now += 1  # no request is sent in the pause after a failure
    fleet.turn()
    assert (backend.did, cloud.last().error) == ([], "no room for 38")


def test_a_system_that_refuses_a_process_is_reported_and_retried_and_another_number_at_once() -> None:
    backend, cloud, clock = FakeBackend(2), FakeCloud(device=3), Clock()
    backend.why_not = BlockingIOError(11, "Resource temporarily unavailable")
    fleet = fleet_of(backend, cloud, clock)
    assert not fleet.turn()
    assert not fleet.turn()
    assert cloud.last().error == "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    backend.why_not, clock.now = None, clock.now + 2
    fleet.turn()
    assert len(backend.running) == 3
    backend.why_not, cloud.wanted = "no room", {"device": 5}
    fleet.turn()
    backend.why_not, cloud.wanted = None, {"device": 4}
    fleet.turn()
    assert len(backend.running) == 4
    backend.why_not, cloud.wanted = PermissionError(1, "Operation not permitted"), {"device": 1}
    fleet.settle()
    fleet.turn()
    assert cloud.last().error == "PermissionError: [Errno 1] Operation not permitted"


def test_many_missing_agents_are_started_in_batches_between_reports_and_none_at_the_end() -> None:
    backend, cloud = FakeBackend(1), FakeCloud(device=1000)
    fleet = fleet_of(backend, cloud)
    assert [fleet.turn() for _ in range(3)] == [True] * 3
    assert [len(report.agents) for report in cloud.heard] == [1, 5, 9]
    cloud.wanted = {"device": 15}
    assert fleet.turn() is False  # the two that are missing
    assert len(backend.running) == 15
    cloud.wanted = {"device": 1000}
    fleet.settle(ended=lambda: len(backend.running) >= 23)
    assert len(backend.running) == 23


def test_an_invalid_report_is_a_failure_of_the_fleet_and_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    backend, cloud = FakeBackend(1), FakeCloud(device=2)
    backend.running.append(Agent("no name", "device", 1, 2))
    fleet = fleet_of(backend, cloud)
    assert not fleet.turn()
    assert (cloud.heard, backend.did) == ([], [])
    why = fleet.error or ""
    assert why.startswith("the running agents cannot be reported: name: ")
    assert why in caplog.text
    del backend.running[1]
    fleet.turn()
    assert cloud.last().error == why


def test_agents_that_die_at_start_are_restarted_only_after_a_pause() -> None:
    backend, cloud, clock = FakeBackend(1), FakeCloud(device=2), Clock()
    fleet = fleet_of(backend, cloud, clock)
    n_started = []
    for _ in range(20):
        fleet.turn()
        n_started.append(len(backend.did))
        del backend.running[1:]
        clock.now += 1
    assert [n_started.index(n) for n in (1, 2, 3, 4)] == [0, 3, 8, 17]  # pauses of 2, 4 and 8 s after each end
    assert cloud.last().error == "device-2 ended unexpectedly"
    assert all(report.left == () for report in cloud.heard)  # a crash is a fault and not a planned stop


def test_an_impossible_number_is_reported_and_changes_nothing() -> None:
    backend = FakeBackend(services={"device": Service(each=4), "slow": Service()})
    backend.start("device", 4)
    backend.did.clear()
    cloud = FakeCloud(device=6, slow=1)
    fleet = fleet_of(backend, cloud)
    fleet.settle()
    fleet.settle()
    assert backend.did == ["start slow-2"]
    assert cloud.last().error == "device: 6 devices cannot be made up of agents that host 4 each"
    cloud.wanted = {"device": 8, "slow": 1}
    fleet.settle()
    fleet.settle()
    assert (cloud.last().error, cloud.last().wanted) == (None, {"device": 8, "slow": 1})


def test_without_the_cloud_nothing_changes_and_stops_are_reported_when_it_returns() -> None:
    backend, cloud = FakeBackend(2), FakeCloud(device=1)
    fleet = fleet_of(backend, cloud)
    fleet.turn()
    fleet.turn()
    assert names(backend) == ["device-1"]
    cloud.is_down, cloud.wanted = True, {"device": 5}
    fleet.settle()
    assert names(backend) == ["device-1"]
    cloud.is_down = False
    fleet.turn()
    assert cloud.last().left == ("device-2",)
    assert len(backend.running) == 5


def test_a_fleet_that_cannot_list_agents_says_so_and_reports_no_stops() -> None:
    backend, cloud = FakeBackend(2), FakeCloud(device=2)
    fleet = fleet_of(backend, cloud)
    fleet.turn()
    backend.blind, cloud.wanted = "permission denied", {"device": 1}
    assert not fleet.turn()
    last = cloud.last()
    assert (last.error, last.left, len(last.agents)) == ("permission denied", (), 2)
    assert backend.did == []


@pytest.mark.parametrize("begins", [True, False])
def test_only_the_first_answered_report_marks_the_start(begins: bool) -> None:
    backend, cloud = FakeBackend(1), FakeCloud()
    fleet = Fleet("f", backend, cloud, begins=begins)
    cloud.is_down = True
    fleet.turn()
    cloud.is_down = False
    fleet.turn()
    fleet.turn()
    assert [report.begins for report in cloud.heard] == [begins, False]


def test_a_container_that_does_not_stop_is_reported_and_retried() -> None:
    backend, cloud = FakeBackend(2), FakeCloud(device=1)
    fleet = fleet_of(backend, cloud)
    backend.why_not = "it will not end"
    fleet.turn()
    assert not fleet.turn()
    backend.why_not = None
    fleet.turn()
    assert cloud.last().error == "it will not end"
    assert names(backend) == ["device-1"]
