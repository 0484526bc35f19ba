"""How long the cloud waits for an edge's round, and when it sends a placement, with signed assignments, before it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_server.runs.edge_client import MARGIN_S, WAVES, EdgeClient
from shared.core.errors import Forbidden
from shared.core.number_sets import NumberSet
from shared.federation.experiment import Experiment
from shared.federation.placements import EdgePlacement, Host
from shared.identity.assignments import Assigner, Assignments
from shared.identity.names import CLOUD
from shared.identity.node_keys import NodeKeys
from shared.identity.signing import CloudKey, Signer
from tests.shared.algorithms.layouts import resolved, run

VISIT_S = 5.0


def spec_of(**more: Any) -> dict[str, Any]:
    """Four devices at one edge, whose 160 samples together make ten batches."""
    spec = {
        "data": {"name": "digits", "n_train": 160, "n_test": 40},
        "num_devices": 4,
        "num_edges": 1,
        "num_rounds": 1,
        "edge_rounds": 2,
        "batch_size": 16,
        "local_epochs": 3,
        "schedule": "equal",
        "timeouts": {"visit_s": VISIT_S},
    }
    return {**spec, **more}


def limit_s(experiment: Experiment) -> float:
    """The longest wait for the edge, to which agent `a` brings all seats."""
    host = Host(agent="a", url="http://a", seats=NumberSet(range(4)))
    placement = EdgePlacement(run_id="r", edge=0, hosts=(host,))
    client = EdgeClient(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    return client.limit_s(experiment, placement, {"a": 4})


@pytest.mark.matrix(2)
@pytest.mark.parametrize(("every", "n_edge_rounds"), [("visit", 2), ("epoch", 2 * 3), ("step", 2 * 3 * 10)])
async def test_cloud_waits_as_long_as_all_edge_rounds_may_take(every: str, n_edge_rounds: int, tmp_path: Path) -> None:
    """Each edge round takes at most one visit after another at the agent, in each of its waves."""
    experiment = resolved(**spec_of(average_every=every))
    assert limit_s(experiment) == MARGIN_S + n_edge_rounds * WAVES * 4 * VISIT_S
    done = await run(tmp_path, spec_of(average_every=every), n_edges=1, agent_devices=(4,))
    assert {row.edge_round for row in done.rounds[0].seats if row.outcome == "used"} == set(range(n_edge_rounds))


def test_the_cloud_waits_for_all_updates_of_a_version_of_asynchronous_devices() -> None:
    """Of ten updates one of four devices brings three, be it alone at its agent or not."""
    sync = {"devices": {"mode": "asynchronous", "buffer": 10}}
    experiment = resolved(**spec_of(sync=sync, schedule="own_data", twins=False))
    assert limit_s(experiment) == MARGIN_S + experiment.spec.most_edge_rounds * 3 * WAVES * 4 * VISIT_S


def test_the_cloud_waits_for_the_edge_rounds_of_each_edge() -> None:
    waits = [limit_s(resolved(**spec_of(edge_rounds=n, num_edges=2))) for n in (3, [3, 1], [1, 3])]
    assert waits[0] == waits[1] == waits[2] + 2 * WAVES * 4 * VISIT_S


def test_with_clock_real_the_cloud_waits_for_the_deadline_of_every_mini_batch() -> None:
    experiment = resolved(**spec_of(average_every="step", clock="real", round_deadline_s=7.0))
    n_edge_rounds = 2 * 3 * 10
    assert limit_s(experiment) == MARGIN_S + n_edge_rounds * (WAVES * 4 * VISIT_S + 7.0)


class Edges:
    """Edges that keep what they are sent; stands for the registry and the HTTP client."""

    def __init__(self) -> None:
        self.edges = {name: SimpleNamespace(own_url=f"https://{name}") for name in ("edge-1", "edge-2")}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def call_json(self, method: str, url: str, body: dict[str, Any], **options: Any) -> None:
        self.sent.append((url, body))


async def sent_for(client: EdgeClient, edges: Edges, edge: int, *seats: int) -> dict[str, Any] | None:
    """What an edge is sent before a round that these seats visit, all of one agent; None if it is sent nothing."""
    host = Host(agent="a", url="https://a", seats=NumberSet(seats))
    placement = EdgePlacement(run_id="r", edge=edge, hosts=(host,))
    before = len(edges.sent)
    await client._send_placement(f"edge-{edge + 1}", placement, {"a": 3})
    return edges.sent[-1][1] if len(edges.sent) > before else None


async def test_a_seat_that_comes_back_to_an_edge_is_assigned_anew(tmp_path: Path) -> None:
    """Its agent obeys the newest assignment, which is meanwhile that of another edge."""
    signer, cloud_key = Signer(NodeKeys(CLOUD, tmp_path), 1), CloudKey()
    cloud_key.trust(signer.public_key)
    edges, agent, assigner = Edges(), Assignments("a", cloud_key), Assigner(signer)
    client = EdgeClient(edges, edges, assigner)  # type: ignore[arg-type]

    async def orders(edge: int, *seats: int) -> str:
        body = await sent_for(client, edges, edge, *seats)
        assert body is not None
        agent.check(body["assignments"]["a"], f"edge-{edge + 1}", "r", edge, seats)
        return str(body["assignments"]["a"])

    first = await orders(0, 0, 1)
    assert await sent_for(client, edges, 0, 0, 1) is None, "nothing has changed"
    await orders(1, 1, 2)  # seat 1 moved; the first edge has no round meanwhile
    with pytest.raises(Forbidden, match="reassigned"):
        agent.check(first, "edge-1", "r", 0, [0, 1])
    await orders(0, 0, 1)
    await orders(1, 1, 2)


async def test_without_certificates_a_placement_is_sent_once_and_nothing_is_signed() -> None:
    edges = Edges()
    client = EdgeClient(edges, edges)  # type: ignore[arg-type]
    assert "assignments" not in (await sent_for(client, edges, 0, 0, 1) or {"assignments": 1})
    await sent_for(client, edges, 1, 1)
    assert await sent_for(client, edges, 0, 0, 1) is None
