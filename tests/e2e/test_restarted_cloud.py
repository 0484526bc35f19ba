"""A cloud that is killed during a run and restarted, as API clients and the dashboard see it: no event is missed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from shared.run_records.events import Event
from shared.run_records.runs import FINAL
from strata.api.client import Client
from tests.e2e.browser import Visitor
from tests.e2e.real_faults import GATED
from tests.soak.deployment import Deployment
from tests.waits import HANG_S, until

pytestmark = pytest.mark.e2e
WORD = "a token of the tests"
ROUNDS = 6
AWAY = "The cloud does not answer."


class Follower(threading.Thread):
    """Follows `GET /runs/{id}/events` from the first event to the run's end and reconnects when needed.

    It keeps every event in the order of arrival.
    """

    def __init__(self, url: str, run: str) -> None:
        super().__init__(daemon=True)
        self.url, self.run_id = url, run
        self.seen: list[Event] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Read events until the run has ended."""
        with Client(self.url, reconnect_s=120.0) as client:
            for event in client.events(self.run_id, idle_s=1.0):
                if event is None and self.seen and _ends(self.seen[-1]):
                    break
                if event is not None:
                    self.seen.append(event)
        self.ended.set()


def _ends(event: Event) -> bool:
    return event.kind == "run.status" and event.data["status"] in FINAL


def points(visitor: Visitor) -> list[float]:
    """Returns the rounds for which the chart shows the accuracy of the global model."""
    lines = [s for chart in visitor.charts() for s in chart["series"] if s.get("name") == "global model"]
    return [point[0] for point in lines[0]["data"]] if lines else []


def alert(visitor: Visitor, words: str) -> Any:
    return visitor.page.get_by_role("alert").filter(has_text=words)


def test_events_and_page_of_a_run_continue_after_its_cloud_was_killed(chromium: Any, tmp_path: Path) -> None:
    with Deployment(tmp_path / "deployment", ttl_s=40) as deployment, deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit({**GATED, "num_rounds": ROUNDS})
        gate.wait("agent-1", 2)
        deployment.client.pause(run)  # so that it does not end before both clients are connected
        gate.hold(from_round=4)
        follower = Follower(deployment.topology.url, run)
        follower.start()
        visitor = Visitor(chromium, deployment.topology.url)
        page = visitor.go(f"/runs/{run}")
        page.evaluate("window.before = true")
        until("a point of the curve", lambda: points(visitor))
        until("the pause", lambda: deployment.client.run(run).status == "paused")
        deployment.client.resume(run)
        gate.wait("agent-1", 4)
        with deployment.killed("cloud"):
            n_before = len(follower.seen)
            alert(visitor, AWAY).wait_for()
            assert points(visitor)[-1] < ROUNDS
        gate.open()
        page.wait_for_function("window.before === undefined")
        page.get_by_role("heading", level=1).wait_for()
        alert(visitor, AWAY).wait_for(state="hidden")
        assert deployment.finish(run).status == "completed"
        page.get_by_role("status").filter(has_text="completed").wait_for()
        page.get_by_text(f"{ROUNDS} of {ROUNDS}", exact=True).wait_for()
        until("the curve has all rounds", lambda: points(visitor) == list(range(1, ROUNDS + 1)))
        assert follower.ended.wait(HANG_S)
        second = Follower(deployment.topology.url, run)
        second.start()
        assert second.ended.wait(HANG_S)
        assert 0 < n_before < len(follower.seen)
        assert [event.id for event in follower.seen] == [event.id for event in second.seen]
        assert follower.seen == second.seen
        ids = [tuple(map(int, event.id.split("-"))) for event in second.seen]
        assert ids == sorted(set(ids))
        committed = [event.data["round_no"] for event in second.seen if event.kind == "round.committed"]
        assert committed == list(range(1, ROUNDS + 1))


def test_page_whose_session_ended_with_its_cloud_asks_for_the_token_again(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_API_TOKEN", WORD)
    with Deployment(tmp_path / "deployment", edges=1, devices=1, agents=1) as deployment:
        visitor = Visitor(chromium, deployment.topology.url)
        page = visitor.page
        page.goto(f"{visitor.url}/ui/runs")
        log_in(page)
        page.get_by_role("heading", name="Runs", level=1).wait_for()
        with deployment.killed("cloud"):
            alert(visitor, AWAY).wait_for()
        page.wait_for_url("**/ui/login?next=**")
        log_in(page)
        page.wait_for_url("**/ui/runs")
        page.get_by_role("heading", name="Runs", level=1).wait_for()


def log_in(page: Any) -> None:
    page.get_by_label("API token").fill(WORD)
    page.get_by_role("button", name="Log in").click()
