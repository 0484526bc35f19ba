"""Changes of nodes' states between two checks."""

from __future__ import annotations

from cloud_server.nodes.liveness import Changes
from shared.service.api.nodes import State


def changes_of(*looks: State) -> list[str]:
    """Returns the changes of one node's state over several checks."""
    changes = Changes()
    return [change.state for state in looks for change in changes.since({("edge", "edge-1"): state})]


def test_a_loss_between_two_checks_is_reported_before_the_return() -> None:
    assert changes_of("alive", "revived", "alive") == ["lost", "revived", "alive"]
    assert changes_of("alive", "suspect", "revived") == ["suspect", "lost", "revived"]


def test_a_loss_is_reported_once_and_an_offline_node_is_not_lost() -> None:
    assert changes_of("alive", "lost", "lost", "revived", "revived") == ["lost", "revived"]
    assert changes_of("alive", "offline", "revived") == ["offline", "revived"]
    assert changes_of("revived", "alive") == ["alive"]
