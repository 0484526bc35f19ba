"""Changes of nodes' states between two checks."""

from __future__ import annotations

from cloud_server.nodes.liveness import LastSeen, StateChanges
from shared.service.api.nodes import State


def changes_of(*looks: State) -> list[str]:
    """Returns the changes of one node's state over several checks."""
    changes = StateChanges()
    return [change.state for state in looks for change in changes.since_last_check({("edge", "edge-1"): state})]


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
