"""Attacks on real processes: hundreds of slow clients, secrets in files and output, streams at shutdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from shared.run_records.runs import FINAL
from shared.service.protocol import SAID
from strata.api.client import Client as Api
from strata.launcher.topology import Topology
from tests.fork_server import shared_fork_server
from tests.security.sockets import Client
from tests.waits import HANG_S, PACED, until

pytestmark = pytest.mark.e2e

API_TOKEN = "api-" + "5ecret" * 4
SPEC = {
    "data": {"name": "digits", "n_train": 300, "n_test": 100},
    "num_rounds": 100_000,
    "num_devices": 4,
    "num_edges": 1,
    **PACED,
}
HALVES = (
    b"",
    b"GET /topology HTTP/1.1\r\nhost: x\r\nx-half: ",
    b"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    b"POST /rounds HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n%p\r\ncontent-length: 100\r\n\r\nx",
    b"POST /visits HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n%p\r\ncontent-length: 100\r\n\r\nx",
)


@dataclass
class Target:
    """A topology with a long run."""

    topology: Topology
    runs_dir: Path
    http: httpx2.Client
    api: Api
    run: str

    def rounds(self) -> int:
        return self.api.run(self.run).rounds


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The last test stops it."""
    tmp_path = tmp_path_factory.mktemp("target")
    env = {f"{tier}_{name}_S": "2" for tier in ("CLOUD", "EDGE", "AGENT") for name in ("HEAD", "BODY")}
    runs, cache = tmp_path / "runs", str(tmp_path / "cache")
    env |= {"STRATA_LOG_LEVEL": "DEBUG", "STRATA_CACHE_DIR": cache, "STRATA_API_TOKEN": API_TOKEN}
    layout: dict[str, Any] = {"edges": 1, "devices": 4, "agents": 1}
    with (
        pytest.MonkeyPatch.context() as patch,
        Topology(**layout, runs_dir=runs, folder=tmp_path / "work", env=env, fork=shared_fork_server()) as topology,
    ):
        patch.setenv("STRATA_API_TOKEN", API_TOKEN)
        topology.wait_ready(HANG_S)
        headers = {"authorization": f"Bearer {API_TOKEN}"}
        with Api(topology.url) as api, httpx2.Client(base_url=topology.url, headers=headers, timeout=120) as http:
            target = Target(topology, runs, http, api, api.create_run(SPEC).run)
            until("a round", lambda: target.rounds() > 0)
            yield target


def port_of_agent(log: str) -> int:
    """Returns an agent's port, which only the cloud and the agent's log know."""
    (port,) = re.findall(r"agent listens on 127\.0\.0\.1:([0-9]+)", log)
    return int(port)


def test_two_hundred_slow_clients_are_disconnected_and_the_run_continues(target: Target) -> None:
    edge = urlsplit(target.api.edges().edges[0].url).port
    agent = port_of_agent((target.topology.folder / "logs" / "agent-1.log").read_text())
    cloud = urlsplit(target.topology.url).port
    assert cloud is not None
    assert edge is not None
    token = target.topology.tier_token.encode()
    protocol = "\r\n".join(map(": ".join, SAID.items())).encode()
    halves = [half.replace(b"%s", token).replace(b"%p", protocol) for half in HALVES]
    before = target.rounds()
    slow = [Client(port, halves[n % len(halves)]) for n in range(67) for port in (cloud, edge, agent)]
    assert len(slow) > 200
    assert target.http.get("/readyz").status_code == 200  # while the slow clients stay connected
    for client in slow:
        with closing(client):
            heard = client.rest()  # ends only if the other side closes
            assert not heard or heard.split(b" ", 2)[1] in (b"401", b"404", b"408")
    until("two rounds more", lambda: target.rounds() > before + 1)
    assert {round_.n_used for round_ in target.api.rounds(target.run).rounds} == {4}


def test_a_stream_of_events_ends_when_the_cloud_is_stopped(target: Target) -> None:
    target.api.pause(target.run)
    until("the pause", lambda: target.api.run(target.run).status == "paused")
    with target.http.stream("GET", f"/runs/{target.run}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("id: ")
        target.topology.end("cloud", grace_s=60)
        rest = list(lines)  # raises if the answer is truncated
    assert rest[-1] == ""
    log = (target.topology.folder / "logs" / "cloud.log").read_text()
    assert "graceful shutdown exceeded" not in log
    assert "Traceback" not in log
    target.topology.start_again("cloud")
    target.topology.wait_ready(HANG_S)


def test_no_secret_is_in_any_file_output_or_answer(target: Target) -> None:
    get, run = target.http.get, target.run
    target.api.stop(run)
    until("the end of the run", lambda: target.api.run(run).status in FINAL)
    document = get("/openapi.json").json()
    contents = [get("/openapi.json").content]
    topology = target.api.topology()
    for path in document["paths"]:
        if "get" in document["paths"][path]:
            fill = {"run_id": run, "round_no": "1", "name": "global"}
            fill |= {"agent": topology.agents[0].agent, "edge": topology.edges[0].edge, "request_id": "0" * 32}
            contents.append(get(path.format(**fill)).content)
    refused = [
        SAID | {"authorization": words} for words in (f"Bearer {target.topology.tier_token}", f"Basic {API_TOKEN}")
    ]
    answers = [get("/runs", headers=headers) for headers in refused]
    answers += [target.http.post("/agents", headers=headers, json={}) for headers in refused]
    answers += [target.http.post("/runs", json={"spec": {"nme": 1}}), get("/nowhere"), get(f"/runs/{run}/files/x")]
    assert {answer.status_code for answer in answers} == {401, 404, 422}
    contents += [answer.content + repr(answer.headers.raw).encode() for answer in answers]
    target.topology.stop()  # so that all files are written
    folders = (target.topology._given_folder, target.runs_dir)
    files = {path: path.read_bytes() for folder in folders if folder for path in folder.rglob("*") if path.is_file()}
    names = {path.name for path in files}
    assert {"cloud.log", "edge-1.log", "agent-1.log", "manifest.json"} <= names
    # The files of Redis are searched too.
    assert any("redis" in str(path) and run.encode() in data for path, data in files.items())
    for secret in (target.topology.tier_token.encode(), API_TOKEN.encode()):
        assert [str(path) for path, data in files.items() if secret in data] == []
        assert [text for text in contents if secret in text] == []
