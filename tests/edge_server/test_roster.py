"""The roster of an edge: which agents count as alive."""

from __future__ import annotations

import itertools

import pytest

from edge_server.roster import Roster
from shared.core.errors import NotFound
from shared.service.api.membership import AgentHeartbeat, HeartbeatAnswer


def test_silence_counts_from_the_last_heartbeat_at_any_edge_or_from_the_request() -> None:
    roster = Roster(clock=lambda: 100.0)
    assert roster.silent_s("a", since=95.0) == 5.0
    roster.update(HeartbeatAnswer(heard={"a": 3.0}))
    assert roster.silent_s("a", since=95.0) == 3.0
    assert roster.silent_s("a", since=99.0) == 1.0
    roster.record_heartbeat(AgentHeartbeat(agent="a"))
    assert roster.silent_s("a", since=95.0) == 0.0
    assert roster.silent_s("b", since=95.0) == 5.0


def test_an_agent_that_the_cloud_does_not_know_is_asked_once_to_register() -> None:
    roster = Roster()
    roster.update(HeartbeatAnswer(unknown=("a",)))
    with pytest.raises(NotFound, match="register again"):
        roster.record_heartbeat(AgentHeartbeat(agent="a"))
    roster.record_heartbeat(AgentHeartbeat(agent="a"))
    assert [entry.agent for entry in roster.entries()] == ["a"]


def test_an_agent_has_left_if_the_cloud_reports_it_after_the_request() -> None:
    """A returning agent may get a request before this edge learns of its return."""
    times = itertools.count(100.0)
    roster = Roster(clock=lambda: next(times))
    began = roster.clock()
    roster.update(HeartbeatAnswer(left=("a-1",)))
    requested = roster.clock()
    assert (roster.has_left("a-1", began), roster.has_left("a-1", requested)) == (True, False)
    roster.update(HeartbeatAnswer(left=("a-1", "a-2")))  # the same outdated report
    assert (roster.has_left("a-1", requested), roster.has_left("a-2", requested)) == (False, True)
    roster.update(HeartbeatAnswer())
    assert not roster.has_left("a-1", began)


def test_agents_are_named_as_awaited_until_the_last_of_their_answers_is_there() -> None:
    roster = Roster()
    with roster.awaiting("a"):
        with pytest.raises(ZeroDivisionError), roster.awaiting("a"), roster.awaiting("b"):
            _ = 1 / 0
        assert sorted(roster.awaited) == ["a"]
    assert not roster.awaited
