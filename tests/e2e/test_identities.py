"""Secure mode with real processes: what each stolen secret opens, what a revocation closes, and that no bit changes."""

from __future__ import annotations

import json
import os
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cloud_server.nodes.identities import issue_own
from shared.core.errors import Conflict, StrataError, Unreachable
from shared.core.number_sets import NumberSet
from shared.federation.messages import UploadOrder, WaveId
from shared.federation.spec_parser import parse_spec
from shared.identity.assignments import Assigner
from shared.identity.authority import authority_of, make_authority
from shared.identity.join_tokens import read_token
from shared.identity.names import ANY_NODE, CLOUD, Identity, agent_identity, edge_identity
from shared.identity.node_keys import NodeKeys
from shared.identity.signing import Signer
from shared.service.joining import join
from shared.service.order_headers import MEDIA_TYPE
from shared.service.protocol import SAID
from shared.storage import redis_keys
from shared.storage.key_value import RedisStore, StoreUnavailable, StoreUser
from shared.wire import codec
from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.fork_server import shared_fork_server
from tests.forked_strata import Command, run
from tests.shared.algorithms import layouts
from tests.waits import HANG_S, until

pytestmark = pytest.mark.e2e
SPEC: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 400, "n_test": 100},
    "num_edges": 2,
    "num_devices": 4,
    "num_rounds": 2,
    "seed": 5,
}
QUICK = {f"{tier}_{name}": value for tier in ("CLOUD", "EDGE", "AGENT") for name, value in [("HEARTBEAT_S", "0.2")]}
ROOT = Path(__file__).resolve().parents[2]


def started(folder: Path, **options: Any) -> Topology:
    places: dict[str, Any] = {"runs_dir": folder / "runs", "folder": folder / "state"}
    env = {**QUICK, "STRATA_METRICS_TOKEN": "for-metrics"}
    return Topology(edges=2, devices=4, agents=2, env=env, fork=shared_fork_server(), **places, **options)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    with started(tmp_path_factory.mktemp("secure"), secure=True) as topology:
        topology.wait_ready(HANG_S)
        yield topology


def client_of(topology: Topology) -> Client:
    return Client(topology.url, authority=topology.authority_file)


def identity_of(topology: Topology, process: str) -> Identity:
    """Returns who a process is."""
    if process == "cloud":
        return CLOUD
    if process.startswith("edge"):
        return edge_identity(process)
    return agent_identity((topology.folder / process / "agent-id").read_text(encoding="ascii").strip())


def stolen(topology: Topology, process: str) -> ssl.SSLContext:
    """Returns a client's side of TLS with the files of a process."""
    return NodeKeys(identity_of(topology, process), topology.folder / process / "identity").client


def without_certificate(topology: Topology) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(topology.authority_file))


def ask(topology: Topology, context: ssl.SSLContext, target: str, method: str, path: str, **options: Any) -> Any:
    """Returns the answer of a process to a request."""
    called = {"sni_hostname": identity_of(topology, target).server_name}
    with httpx2.Client(verify=context, trust_env=False, timeout=120, headers=SAID) as client:
        url = f"https://127.0.0.1:{topology.ports[target]}{path}"
        return client.request(method, url, extensions=called, **options)


def answers(topology: Topology, target: str) -> bool:
    """Whether a process answers."""
    with suppress(httpx2.TransportError):
        return bool(ask(topology, without_certificate(topology), target, "GET", "/healthz").status_code == 200)
    return False


ROUTES = [
    ("cloud", "POST", "/agents", "device"),
    ("cloud", "POST", "/edges", "edge"),
    ("cloud", "POST", "/heartbeats", "edge"),
    ("cloud", "POST", "/fleet", "fleet"),
    ("edge-1", "GET", "/nonce", "cloud"),
    ("edge-1", "PUT", "/placements", "cloud"),
    ("edge-1", "POST", "/rounds", "cloud"),
    ("edge-1", "GET", "/runs/none/twins", "cloud"),
    ("edge-1", "GET", "/runs/none/visits", "cloud"),
    ("edge-1", "POST", "/heartbeats", "device"),
    ("agent-1", "GET", "/nonce", "cloud"),
    ("agent-1", "POST", "/visits", "edge"),
    ("agent-1", "POST", "/uploads", "edge"),
]


@pytest.mark.smoke
async def test_a_run_gives_the_bits_of_one_without_certificates(up: Topology, tmp_path: Path) -> None:
    other = (await layouts.run(tmp_path, SPEC, agent_devices=(2, 2), n_edges=2)).info
    with client_of(up) as client:
        completed(client, SPEC)
        info = client.run("latest")
    assert info.model_sha256 == other.model_sha256
    assert (info.bytes_up, info.bytes_down, info.accuracy) == (other.bytes_up, other.bytes_down, other.accuracy)


@pytest.mark.parametrize("thief", ["nobody", "cloud", "edge-2", "agent-2"])
def test_what_the_files_of_a_node_open(up: Topology, thief: str) -> None:
    """Each route of each tier answers one class of nodes; of the others it refuses all."""
    context = without_certificate(up) if thief == "nobody" else stolen(up, thief)
    own = None if thief == "nobody" else identity_of(up, thief).node_class
    opened = []
    for target, method, path, node_class in ROUTES:
        answer = ask(up, context, target, method, path, json={}, headers={"strata-edge": thief})
        assert answer.status_code != 500
        if answer.status_code in (401, 403):
            assert node_class in answer.json()["detail"], "the error names the class that may call"
        else:
            opened.append((target, method, path, node_class))
    assert opened == [route for route in ROUTES if route[3] == own]


@pytest.mark.parametrize("thief", ["nobody", "edge-2", "agent-2"])
async def test_what_the_files_of_a_node_open_in_redis(up: Topology, thief: str) -> None:
    """Of the cloud's and of another edge's keys no value; an edge reaches its own."""
    names = {"cloud": redis_keys.CLOUD_OWNER, "edge-1": redis_keys.edge_prefix("edge-1") + "a"}
    own = redis_keys.edge_prefix("edge-2") + "a"
    password = (
        "" if thief == "nobody" else NodeKeys(identity_of(up, thief), up.folder / thief / "identity").store_password
    )
    assert bool(password) == (thief == "edge-2")
    store = RedisStore(
        up.redis.url, user=lambda: StoreUser(redis_keys.user_of_edge(thief), password) if password else None
    )
    for key in (*names.values(), *(() if password else (own,))):
        for attempt in (store.get(key), store.put(key, b"1"), store.read(key)):
            with pytest.raises(StoreUnavailable, match="refuses"):
                await attempt
    if password:
        await store.put(own, b"1")
        assert await store.delete(own) == 1
    await store.close()


def test_metrics_are_for_the_token_of_metrics_under_one_name_of_all_nodes(up: Topology) -> None:
    context = without_certificate(up)
    for process in sorted(up.processes.keys() - {"cloud"}):  # whose users show no token on this machine
        url = f"https://127.0.0.1:{up.ports[process]}/metrics"
        with httpx2.Client(verify=context, timeout=120, headers=SAID) as client:
            for token, status in (("for-metrics", 200), ("another", 401)):
                headers, named = {"authorization": f"Bearer {token}"}, {"sni_hostname": ANY_NODE}
                assert client.get(url, headers=headers, extensions=named).status_code == status


def test_a_guessed_token_opens_nothing_in_secure_mode(up: Topology) -> None:
    for target, method, path, _ in ROUTES:
        headers = {"authorization": f"Bearer {up.tier_token}"}
        assert ask(up, without_certificate(up), target, method, path, json={}, headers=headers).status_code == 401


def test_a_device_speaks_neither_for_another_device_nor_for_an_edge(up: Topology) -> None:
    device, other = stolen(up, "agent-1"), identity_of(up, "agent-2")
    beat = ask(up, device, "edge-1", "POST", "/heartbeats", json={"agent": other.name})
    assert beat.status_code == 403
    assert f"may not speak for the device '{other.name}'" in beat.json()["detail"]
    hello = {"agent": other.name, "name": "x", "devices": 1, "profile": "standard", "port": 1, "nonce": "n" * 16}
    assert ask(up, device, "cloud", "POST", "/agents", json=hello).status_code == 403


def test_an_edge_speaks_for_itself_alone(up: Topology) -> None:
    edge = stolen(up, "edge-1")
    hello = {"edge": "edge-2", "port": up.ports["edge-1"], "nonce": "n" * 16}
    assert ask(up, edge, "cloud", "POST", "/edges", json=hello).status_code == 403
    assert ask(up, edge, "cloud", "POST", "/heartbeats", json={"edge": "edge-2"}).status_code == 403
    order = ask(up, edge, "agent-1", "POST", "/visits", headers={"strata-edge": "edge-2"}, content=b"")
    assert order.status_code == 403


def test_an_edge_orders_no_seat_that_the_cloud_has_not_assigned_to_it(up: Topology, tmp_path: Path) -> None:
    """Neither with no assignment, nor with one of its own making; the edge to which seats are assigned trains them."""
    agent = identity_of(up, "agent-1").name
    spec = parse_spec(SPEC)
    stage = WaveId(run_id="r", round_no=1, edge_round=0, wave=0)
    body = codec.encode(UploadOrder(stage=stage, spec=spec, edge=1, seats=(0,)))
    own = Assigner(Signer(NodeKeys(edge_identity("edge-2"), up.folder / "edge-2" / "identity"), 99))
    for shown in ("", own.assign("r", 1, "edge-2", agent, NumberSet([0]))):
        headers = {"strata-edge": "edge-2", "strata-assignment": shown, "content-type": MEDIA_TYPE}
        content = b"".join(bytes(part) for part in body.parts)
        headers["strata-crc32"] = body.checksum()
        answer = ask(up, stolen(up, "edge-2"), "agent-1", "POST", "/uploads", headers=headers, content=content)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "no assignment that the cloud has signed" in answer.json()["detail"]


def test_a_name_that_no_node_can_have_is_refused_by_its_field(up: Topology) -> None:
    answer = ask(up, without_certificate(up), "cloud", "DELETE", "/identities/device/a%20b")
    assert (answer.status_code, answer.json()["field"]) == (422, "path.name")


def test_a_process_of_another_authority_is_nobody(up: Topology, tmp_path: Path) -> None:
    foreign = NodeKeys(CLOUD, tmp_path)
    issue_own(foreign, make_authority(), 600.0, [])
    with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
        ask(up, foreign.client, "agent-1", "GET", "/nonce")
    foreign.client.load_verify_locations(up.authority_file)
    with pytest.raises(httpx2.TransportError):
        ask(up, foreign.client, "agent-1", "GET", "/nonce").raise_for_status()


def test_the_authoritys_folder_makes_any_node(up: Topology, tmp_path: Path) -> None:
    keys = NodeKeys(CLOUD, tmp_path)
    issue_own(keys, authority_of(up.folder / "authority"), 600.0, [])
    assert ask(up, keys.client, "agent-1", "GET", "/nonce").status_code == 200


def test_plain_http_reaches_no_tier(up: Topology) -> None:
    for name, port in up.ports.items():
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=120)
        assert ask(up, without_certificate(up), name, "GET", "/healthz").status_code == 200


def test_a_user_must_know_the_authority(up: Topology) -> None:
    with pytest.raises(Unreachable, match="certificate"), Client(up.url) as stranger:
        stranger.runs()


def test_a_token_joins_its_class_alone_and_no_name_that_another_key_has(up: Topology, tmp_path: Path) -> None:
    token = read_token(up.join_token("device"))
    newcomer = NodeKeys(agent_identity("a-newcomer"), tmp_path / "newcomer")
    join(newcomer, up.url, token, wait=_never)
    assert newcomer.holds(token.fingerprint, time.time())
    with pytest.raises(StrataError, match="join token of the class edge"):
        join(NodeKeys(edge_identity("edge-9"), tmp_path / "edge"), up.url, token, wait=_never)
    taken = NodeKeys(identity_of(up, "agent-1"), tmp_path / "taken")
    with pytest.raises(StrataError, match="bound to another key") as refused:
        join(taken, up.url, token, wait=_never)
    assert refused.value.status == Conflict.status


def test_a_node_that_starts_again_keeps_its_certificate(up: Topology) -> None:
    folder = up.folder / "agent-2" / "identity"
    before = (folder / "node.pem").read_bytes()
    up.start_again("agent-2")
    until("it answers", partial(answers, up, "agent-2"))  # it joins before it listens
    up.wait_ready(HANG_S)
    assert (folder / "node.pem").read_bytes() == before


async def test_a_revoked_node_is_refused_by_every_tier_and_others_take_its_place(tmp_path: Path) -> None:
    with started(tmp_path, secure=True) as topology, client_of(topology) as client:
        topology.wait_ready(HANG_S)
        gone, context = identity_of(topology, "agent-2"), stolen(topology, "agent-2")
        edge_context = stolen(topology, "edge-1")

        def heard_by(edge: str) -> int:
            beat = ask(topology, context, edge, "POST", "/heartbeats", json={"agent": gone.name})
            return int(beat.status_code)

        assert [heard_by(edge) for edge in topology.edge_names] == [200, 200]
        client.revoke("device", gone.name)
        assert [heard_by(edge) for edge in topology.edge_names] == [403, 403]
        refused = ask(topology, context, "cloud", "POST", "/agents", json={})
        assert (refused.status_code, "has been revoked" in refused.json()["detail"]) == (403, True)
        left = {identity_of(topology, "agent-1").name}
        assert completed(client, {**SPEC, "num_devices": 2}) == left

        password = NodeKeys(edge_identity("edge-1"), topology.folder / "edge-1" / "identity").store_password
        store = RedisStore(topology.redis.url, user=lambda: StoreUser(redis_keys.user_of_edge("edge-1"), password))
        await store.get(redis_keys.edge_prefix("edge-1"))
        client.revoke("edge", "edge-1")
        for _ in range(2):  # its connection to Redis has been closed, and it gets no other
            with pytest.raises(StoreUnavailable):
                await store.get(redis_keys.edge_prefix("edge-1"))
        assert store.refuses_user
        await store.close()
        headers = {"strata-edge": "edge-1"}
        order = ask(topology, edge_context, "agent-1", "POST", "/visits", headers=headers, content=b"")
        assert (order.status_code, "has been revoked" in order.json()["detail"]) == (403, True)
        at = "the agent at the other edge"
        until(at, lambda: {each.edge for each in client.agents().agents if each.agent in left} == {"edge-2"})
        assert [edge.edge for edge in client.edges().edges] == ["edge-2"]
        assert completed(client, {**SPEC, "num_devices": 2, "num_edges": 1}) == left


def completed(client: Client, spec: dict[str, Any]) -> set[str | None]:
    """Completes a run; returns the agents that hosted its seats."""
    run = client.create_run(spec).run
    until("the end of the run", lambda: client.run(run).status in ("completed", "failed"))
    assert client.run(run).status == "completed", client.run(run).reason
    return {seat.agent for seat in client.seats(run).seats}


def _never(seconds: float) -> None:
    raise AssertionError("the cloud is there: nothing to wait for")


def test_the_command_starts_scales_and_revokes_in_secure_mode(tmp_path: Path) -> None:
    def strata(*words: str) -> Any:
        done = run(*words, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "json" in words else None

    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    environment |= {"PYTHONPATH": str(ROOT), "STRATA_HOME": str(tmp_path / ".strata"), **QUICK}
    json_of = ("--format", "json")
    up = Command(
        "up", "--secure", "--port", "0", "--devices", "2", "--agents", "2", *json_of, cwd=tmp_path, env=environment
    )
    try:
        ready = json.loads(up.stdout.readline())
        assert ready["url"].startswith("https://")
        assert strata("scale", "3", "--wait", *json_of)["n_devices"] == 3
        known = {(each["node_class"], each["name"]) for each in strata("identities", *json_of)}
        agents = {(each["agent"], each["name"]) for each in strata("agents", *json_of)}
        fleet = {name for node_class, name in known if node_class == "fleet"}
        edges = {("edge", "edge-1"), ("edge", "edge-2")}
        assert known == edges | {("device", agent) for agent, _ in agents} | {("fleet", name) for name in fleet}
        assert len(fleet) == 1
        strata("revoke", "agent-2")
        (gone,) = [agent for agent, name in agents if name == "agent-2"]
        assert ("device", gone) not in {(each["node_class"], each["name"]) for each in strata("identities", *json_of)}
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate()
    assert up.returncode == 0
