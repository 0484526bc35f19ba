"""`python -m tests.e2e.large_topology FD`: the dashboard at a listening socket, whose 400 devices change each second.

No run trains: the states are drawn from a seeded generator each time that the page asks. Runs that a page asks for by
their ids cannot be read.
"""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI

from cloud_server.dashboard import layout
from cloud_server.dashboard.mount import attach
from cloud_server.dashboard.pages import topology
from cloud_server.dashboard.run_views import RunView
from cloud_server.dependencies import Cloud
from cloud_server.runs.checkpoint import RunUnreadable
from cloud_server.settings import CloudSettings
from cloud_server.users.tokens import Tokens
from shared.core.number_sets import NumberSet
from shared.run_records.rounds import EdgeRow
from shared.run_records.runs import RunInfo
from shared.run_records.visits import VisitRow
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo
from tests.strata.samples import a_round, a_run, a_seat

EDGES, DEVICES, AGENTS = 40, 400, 4
_SHARE = DEVICES // AGENTS
_OUTCOMES = (("used", None), ("refused", "late"), ("refused", None), ("failed", "busy"), ("failed", "unavailable"))
_random = random.Random(1)


def edge_of(seat: int) -> str:
    return f"edge-{seat * EDGES // DEVICES + 1}"


async def topology_of(cloud: Cloud) -> TopologyInfo:
    edges = [EdgeInfo(edge=f"edge-{n + 1}", url="", state="alive", last_seen_s=0, n_agents=4) for n in range(EDGES)]
    common: dict[str, Any] = {"state": "alive", "last_seen_s": 0, "devices": _SHARE, "profile": "standard"}
    seats = [NumberSet(range(n * _SHARE, (n + 1) * _SHARE)) for n in range(AGENTS)]
    agents = [AgentInfo(agent=f"a{n}", name=f"agent-{n + 1}", seats=own, **common) for n, own in enumerate(seats)]
    return TopologyInfo(n_devices=DEVICES, n_agents=AGENTS, edges=tuple(edges), agents=tuple(agents), active_run="r1")


class Views:
    """In place of the cache of runs: a run with a new round at each request."""

    round_no = 0

    async def with_seats(self, run_id: str) -> RunView:
        self.round_no += 1
        outcomes = _random.choices(_OUTCOMES, weights=(6, 1, 1, 1, 1), k=DEVICES)
        rows = [
            VisitRow(seat=seat, edge=edge_of(seat), outcome=outcome, reason=reason, up_bytes=50_000, down_bytes=60_000)
            for seat, (outcome, reason) in enumerate(outcomes)
        ]
        edges = [EdgeRow(edge=f"edge-{n + 1}", home=n, outcome="used", up_bytes=50_000) for n in range(EDGES)]
        view = RunView(a_run(run=run_id, status="running", rounds=self.round_no, num_rounds=1000))
        view.add_round(a_round(self.round_no, seats=rows, edges=edges, n_visits=DEVICES))
        view.seats = tuple(
            a_seat(seat, edge=edge_of(seat), agent=f"a{seat // _SHARE}", state="taken") for seat in range(DEVICES)
        )
        return view


async def unreadable(run_id: str) -> RunInfo:
    raise RunUnreadable(f"run {run_id} cannot be read")


def main() -> None:
    """Serve the dashboard until a signal."""
    layout.RunViews = lambda _: Views()  # type: ignore[assignment, attr-defined, return-value]
    topology.topology_of = topology_of  # type: ignore[attr-defined]
    app = FastAPI()
    parts = {"ownership": SimpleNamespace(standing_by=str), "runs": SimpleNamespace(info=unreadable)}
    app.state.cloud, app.state.tokens = SimpleNamespace(**parts), Tokens()
    attach(app, CloudSettings())
    uvicorn.run(app, fd=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
