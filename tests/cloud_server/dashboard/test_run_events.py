"""Events of a run as sentences: of every kind that the cloud sends, and of one that it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_server.dashboard.run_events import event_text
from cloud_server.nodes.liveness import StateChange
from cloud_server.runs.events import RunEvent, node_events, round_events
from shared.run_records.events import Event
from tests.strata.samples import a_round


def text_of(kind: str, data: dict[str, Any]) -> str:
    return event_text(Event(id="1-0", kind=kind, at="2026-01-01T00:00:00Z", data=data))


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("run.status", {"status": "failed", "reason": "no quorum"}, "The run is failed: no quorum"),
        ("run.status", {"status": "completed", "reason": None}, "The run is completed."),
        ("round.started", {"round_no": 2, "attempt": 3}, "Round 2 began, attempt 3."),
        (
            "round.evaluated",
            {"round_no": 2, "metric": "accuracy", "score": 0.91239, "evaluation": {}},
            "Round 2 was evaluated: accuracy 0.9124 of the global model.",
        ),
        ("round.retried", {"round_no": 2, "attempt": 1, "reason": "x"}, "Attempt 1 of round 2 is repeated: x"),
        ("seat.moved", {"seats": "0-3", "agent": "a2", "from": "a1"}, "Devices 0-3 went from a1 to a2."),
        (
            "home.moved",
            {"home": 0, "edge": "edge-2", "from": "edge-1"},
            "edge-2 serves edge number 0 in place of edge-1.",
        ),
        ("of.tomorrow", {"seat": 3, "why": "new"}, "seat 3, why new"),
        ("seat.moved", {"seat": 3}, "seat 3"),
    ],
)
def test_an_event_is_a_sentence_and_of_another_version_its_fields(kind: str, data: dict[str, Any], text: str) -> None:
    assert text_of(kind, data) == text


def test_the_events_of_a_round_and_of_nodes_have_their_own_sentences() -> None:
    events: list[RunEvent] = [*round_events(a_round(2)), *node_events([StateChange("agent", "a-1", "lost")])]
    assert [text_of(event.kind, event.data) for event in events] == [
        "Round 2 is done: 2 updates used, 3 tasks, 4 simulated seconds.",
        "Round 2: device 1 at edge-2, timeout: no answer\nin 3 s",
        "Device 1 takes part no more: too slow",
        "Agent a-1 is lost.",
    ]
