"""The rendered chart runs: each pod as a real process with the pod's user, files, variables, address and names.

Needs root and network namespaces; run by `make helm-test`. What only a real cluster can show, docs/how-to/kubernetes.md
lists.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.run_records.runs import RunInfo
from tests.helm.chart import ROOT, render
from tests.helm.cloud import FEW, QUICKSTART, SAME, Cloud, answered
from tests.helm.cluster import Cluster
from tests.helm.pods import Pod, check_tools
from tests.helm.test_chart_policies import CALLERS

pytestmark = [pytest.mark.helm, pytest.mark.timeout(1800)]
ALGORITHM = b"""from strata.plugins import Algorithm

MINE = Algorithm(name="of_a_config_map", paper="none")
"""
VALUES = {
    "agents": [{"name": "device", "replicas": 2, "devices": 5}],
    "plugins": {"packages": ["myalgs"], "configMap": "algs"},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    check_tools()
    algs = {"__init__.py": b"", "mine.py": ALGORITHM}
    with Cluster(tmp_path_factory.mktemp("cluster"), render(VALUES), config_maps={"algs": algs}) as found:
        found.wait_ready()
        yield found


@pytest.fixture
def cloud(cluster: Cluster) -> Cloud:
    return Cloud(cluster)


def test_the_quickstart_gives_the_same_bits_in_pods_as_in_local_processes(
    cloud: Cloud, expected: dict[int, dict[str, Any]]
) -> None:
    assert cloud.devices() == 10
    found = cloud.ran(QUICKSTART)
    assert {name: found[name] for name in SAME} == expected[QUICKSTART["num_rounds"]]
    assert RunInfo.model_validate_json(json.dumps(found)).status == "completed"


def test_pods_are_called_by_those_alone_whom_the_policies_let_in(cluster: Cluster, cloud: Cloud) -> None:
    """By their connections after a run: the policies, which nothing enforces here, would have kept none of them out."""
    cloud.ran({**QUICKSTART, "num_rounds": FEW})
    of_address = {pod.address: _component(pod) for pod in cluster.pods.values()}
    called: dict[str, set[str]] = {}
    for pod in cluster.pods.values():
        for port in pod.container.get("ports", ()):
            sources = pod.callers(port["containerPort"]) & of_address.keys()
            called.setdefault(_component(pod), set()).update(of_address[source] for source in sources)
    assert {target: sources - CALLERS[target] for target, sources in called.items() if sources - CALLERS[target]} == {}
    assert called["redis"] == {"cloud", "edge"}
    assert called["edge"] == {"cloud", "agent"}
    assert "edge" in called["agent"]  # the cloud calls an agent when it registers only
    assert "edge" in called["cloud"]


def _component(pod: Pod) -> str:
    return pod.labels["app.kubernetes.io/component"]


def test_nodes_have_the_names_and_addresses_of_their_pods(cluster: Cluster, cloud: Cloud) -> None:
    edges = {found["edge"]: found["url"] for found in cloud.get("/edges")["edges"]}
    assert edges == {name: f"http://{cluster.pods[name].address}:8001" for name in ("strata-edge-0", "strata-edge-1")}
    assert {found["name"] for found in cloud.get("/agents")["agents"]} == {"strata-device-0", "strata-device-1"}
    assert all(pod.address.startswith("100.") for pod in cluster.pods.values())


def test_a_plug_in_of_a_config_map_is_the_same_in_all_pods(cloud: Cloud) -> None:
    spec = {**QUICKSTART, "name": "mine", "algorithm": "of_a_config_map", "num_rounds": 2}
    assert cloud.ran(spec)["rounds"] == 2


def test_no_pod_can_write_outside_its_folders_or_be_root(cluster: Cluster) -> None:
    for name, pod in cluster.pods.items():
        uid = pod.spec["securityContext"]["runAsUser"]
        assert pod.run("id", "-u").stdout.strip() == str(uid), name
        for folder in ("/etc", "/app", str(ROOT), "/run"):
            assert pod.run("touch", f"{folder}/x").returncode != 0, (name, folder)
        assert pod.process is not None
        status = Path(f"/proc/{pod.process.pid}/status").read_text(encoding="utf-8")
        held = dict(line.split(":", 1) for line in status.splitlines())
        assert {held[key].strip("\t") for key in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}, name
        assert held["NoNewPrivs"].strip() == "1"
        assert held["Uid"].split() == [str(uid)] * 4


def test_requests_without_a_token_are_refused_at_every_tier(cluster: Cluster, cloud: Cloud) -> None:
    assert httpx2.get(f"{cloud.url}/runs", trust_env=False).status_code == 401
    metrics = cluster.volumes.secrets["strata-tokens"]["metrics-token"].decode()
    for name, port in (("strata-cloud-0", 8000), ("strata-edge-1", 8001), ("strata-device-0", 8002)):
        url = f"http://{cluster.pods[name].address}:{port}/metrics"
        assert httpx2.get(url, trust_env=False).status_code == 401
        shown = {"authorization": f"Bearer {metrics}"}
        assert httpx2.get(url, headers=shown, trust_env=False).status_code == 200
        assert "DEVELOPMENT MODE" not in cluster.pods[name].log.read_text(encoding="utf-8")


def test_the_fleet_scales_agents_and_edges_and_their_names_return(cluster: Cluster, cloud: Cloud) -> None:
    cluster.until("the fleet", lambda: cloud.get("/topology")["fleet"])
    before = {found["name"]: found["agent"] for found in cloud.get("/agents")["agents"]}
    for devices, edges in ((15, 3), (5, 2), (10, 2)):
        answer = cloud.ask("PUT", "/topology", json={"devices": {"device": devices}, "edges": edges})
        assert answer.is_success, answer.text
        cluster.until(
            f"{devices} devices and {edges} edges",
            lambda: (
                (found := cloud.get("/topology"))["present"] == {"device": devices}  # noqa: B023
                and found["present_edges"] == edges  # noqa: B023
                and len(cluster.pods) == 3 + devices // 5 + edges  # noqa: B023
            ),
        )
    live = [found for found in cloud.get("/agents")["agents"] if found["state"] in ("alive", "revived")]
    assert {found["name"]: found["agent"] for found in live} == before  # an agent's id is in its claim
    assert {status for _, _, status in cluster._api.asked} == {200}
    assert cloud.get("/topology")["fleet"]["error"] is None
    refused = cloud.ask("PUT", "/topology", json={"devices": 7})
    assert (refused.status_code, "5 and 10 are" in refused.json()["detail"]) == (422, True)


@pytest.mark.parametrize("name", ["strata-edge-0", "strata-device-1", "strata-cloud-0", "strata-redis-0"])
def test_a_pod_that_dies_returns_at_another_address_as_the_node_that_it_was(
    cluster: Cluster, name: str, expected: dict[int, dict[str, Any]]
) -> None:
    agents = {found["name"]: found["agent"] for found in Cloud(cluster).get("/agents")["agents"]}
    before = cluster.pods[name].address
    cluster.delete(name, signal_it=False)
    cluster.settle()
    cluster.wait_ready()
    assert cluster.pods[name].address != before

    def there() -> bool:
        cloud = Cloud(cluster)
        if not cloud.ask("GET", "/readyz").is_success or not all(pod.is_ready() for pod in cluster.pods.values()):
            return False  # a Redis at another address is not found at once
        edges = {found["edge"]: found["url"] for found in cloud.get("/edges")["edges"] if found["state"] == "alive"}
        right = {each: f"http://{cluster.pods[each].address}:8001" for each in ("strata-edge-0", "strata-edge-1")}
        live = {found["name"]: found["agent"] for found in cloud.get("/agents")["agents"] if found["state"] == "alive"}
        return edges == right and {each: live.get(each) for each in ("strata-device-0", "strata-device-1")} == {
            each: agents[each] for each in ("strata-device-0", "strata-device-1")
        }

    cluster.until("all nodes at their addresses", lambda: answered(there))
    found = Cloud(cluster).ran({**QUICKSTART, "num_rounds": FEW})
    assert {name: found[name] for name in SAME} == expected[FEW]


def test_pods_end_when_they_are_asked_to(cluster: Cluster) -> None:
    for name in list(cluster.pods):
        # A server of ours ends by the signal after it has shut down; the first process of a container ends with 0.
        assert cluster.delete(name) in (0, -signal.SIGTERM), name
    cluster.replicas = dict.fromkeys(cluster.replicas, 0)
