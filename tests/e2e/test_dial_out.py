"""Nodes that dial out, as real processes: they listen on nothing, and no bit of a run changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.e2e.real_faults import FEDAVG, GATED, SMALL, assert_same_bits, completed_once, completed_run, lost
from tests.fork_server import shared_fork_server
from tests.soak.deployment import Deployment
from tests.soak.proxy import Fault
from tests.waits import HANG_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
UP = {"AGENT_CONNECT": "up", "EDGE_CONNECT": "up"}


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    files = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    own = {name[len("socket:[") : -1] for name in files if name.startswith("socket:[")}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
    ]
    return {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == "0A" and fields[9] in own}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment whose nodes dial out, agents to edges through a proxy; it has time to restart a process."""
    folder = tmp_path_factory.mktemp("up") / "deployment"
    with Deployment(folder, proxied=("edge-1", "edge-2"), ttl_s=40, env=UP) as deployment:
        yield deployment


def test_agents_listen_on_nothing_and_a_run_has_the_same_bits(up: Deployment, reference: Deployment) -> None:
    ports = {name: listening_ports(process.pid) for name, process in up.topology.processes.items()}
    assert {name for name, found in ports.items() if found} == {"cloud", "edge-1", "edge-2"}
    info, details, _ = completed_run(up, up.submit(SMALL))
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


@pytest.mark.parametrize("killed", ["agent-1", "edge-1", "cloud"])
def test_a_process_killed_during_a_request_and_restarted_loses_nothing(
    killed: str, up: Deployment, reference: Deployment
) -> None:
    with up.gate.closed() as gate:
        run = up.submit(GATED)
        begun = gate.wait("agent-1")
        with up.killed(killed):
            pass
        if killed == "agent-1":
            until("the task to start again", lambda: gate.arrivals("agent-1").count(begun) == 2)
        up.wait_all()
    info, details, _ = completed_run(up, run)
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        *((kind, "/polls") for kind in ("reset", "half", "twice")),
        *((kind, "/requests/") for kind in ("reset", "half", "garble_up", "twice")),
    ],
)
def test_a_fault_between_an_agent_and_its_edge_loses_nothing(
    kind: str, path: str, up: Deployment, reference: Deployment
) -> None:
    """The proxy stands before the edges, which the agents call."""
    before = len(up.proxy.done)
    for edge in ("edge-1", "edge-2"):
        up.proxy.arm(edge, Fault(kind, paths=(path,)))
    info, details, _ = completed_run(up, up.submit(FEDAVG))
    assert len(up.proxy.done) > before
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


def test_nodes_with_certificates_dial_out_too(tmp_path: Path, reference: Deployment) -> None:
    topology = Topology(
        edges=2,
        devices=4,
        agents=2,
        secure=True,
        connect="up",
        runs_dir=tmp_path / "runs",
        folder=tmp_path / "state",
        fork=shared_fork_server(),
    )
    with topology:
        topology.wait_ready(HANG_S)
        with Client(topology.url, authority=topology.authority_file) as client:
            run = client.create_run(SMALL).run
            until("the end of the run", lambda: client.run(run).status in ("completed", "failed"))
            info = client.run(run)
    assert (info.status, info.model_sha256) == ("completed", completed_once(reference, SMALL).model_sha256)
