"""The state of a node by what was heard of it, and the changes between two checks."""

from __future__ import annotations

from cloud_server.nodes.liveness import LastSeen, StateChanges
from shared.service.api.nodes import State


def changes_of(*looks: State) -> list[str]:
    """Returns the changes of one node's state over several checks, in each of which another node is alive."""
    changes, found = StateChanges(), list[str]()
    for state in looks:
        for change in changes.since_last_check({("agent", "edge-1"): "alive", ("edge", "edge-1"): state}):
            assert change[:2] == ("edge", "edge-1")
            found.append(change.state)
    return found


def test_a_silent_node_is_suspect_then_lost_and_a_heartbeat_revives_it() -> None:
    seen = LastSeen(100.0, ttl_s=5.0)
    states = {after: seen.state(100 + after) for after in (0, 2.5, 2.6, 5.0, 5.1)}
    assert states == {0: "alive", 2.5: "alive", 2.6: "suspect", 5.0: "suspect", 5.1: "lost"}
    seen.heard(104.0)
    assert seen.state(104.0) == "alive"  # it sent a heartbeat before it was lost
    seen.heard(110.0)
    assert seen.state(110.0) == "revived"
    seen.heard(114.0)
    assert (seen.state(114.9), seen.state(115.1)) == ("revived", "alive")


def test_a_loss_between_two_checks_is_reported_before_the_return() -> None:
    assert changes_of("alive", "revived", "alive") == ["lost", "revived", "alive"]
    assert changes_of("alive", "suspect", "revived") == ["suspect", "lost", "revived"]


def test_a_loss_is_reported_once_and_an_offline_node_is_not_lost() -> None:
    assert changes_of("alive", "lost", "lost", "revived", "revived") == ["lost", "revived"]
    assert changes_of("alive", "offline", "revived") == ["offline", "revived"]
    assert changes_of("revived", "alive") == ["alive"]


def test_of_several_edges_that_hear_an_agent_the_first_stays_until_it_is_silent() -> None:
    seen = LastSeen(0.0, ttl_s=10)
    for at, edge in enumerate(["edge-1", "edge-2", "edge-2", "edge-1", "edge-2", "edge-3"]):
        seen.heard_by(edge, at, None)
        assert seen.edge == "edge-1"
    seen.heard_by("edge-3", 8, None)
    assert seen.edge == "edge-1"  # which heard it 5 s ago
    seen.heard_by("edge-2", 8.1, None)
    seen.heard_by("edge-3", 8.2, None)
    assert seen.edge == "edge-2"
