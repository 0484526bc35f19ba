"""The rendered chart runs with certificates, whose authority is in the files that cert-manager makes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization

from shared.identity.authority import Authority, make_authority
from shared.identity.join_tokens import JoinTokens
from shared.identity.names import CLASSES
from tests.helm.chart import CERT_MANAGER, render
from tests.helm.cloud import FEW, QUICKSTART, SAME, Cloud, answered
from tests.helm.cluster import Cluster
from tests.helm.pods import check_tools

pytestmark = [pytest.mark.helm, pytest.mark.timeout(1800)]
USERS = "strata-api.fl.svc"
VALUES = {
    "secure": CERT_MANAGER | {"hosts": ["fl.example"]},
    "agents": [{"name": "device", "replicas": 2, "devices": 5, "storage": ""}],
}


def secrets_of(authority: Authority) -> dict[str, dict[str, bytes]]:
    """The Secret that cert-manager makes for a Certificate with `isCA`, and that of join tokens."""
    key = authority.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    assert key.startswith(b"-----BEGIN EC PRIVATE KEY-----")
    pem, secret = authority.pem.encode(), bytes(range(32))
    tokens = JoinTokens(secret, authority.fingerprint)
    joining: dict[str, bytes] = {name: str(tokens.of(name)).encode() for name in CLASSES if name != "cloud"}
    ca = {"tls.key": key, "tls.crt": pem, "ca.crt": pem}
    return {"ca": ca, "join": {"join-secret": secret.hex().encode(), **joining}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    check_tools()
    with Cluster(tmp_path_factory.mktemp("secure"), render(VALUES), secrets_of(make_authority())) as found:
        found.wait_ready()
        yield found


def cloud_of(cluster: Cluster, name: str = USERS) -> Cloud:
    """The cloud, whose certificate is checked for a name."""
    trust = ssl.create_default_context(cadata=cluster.volumes.secrets["ca"]["tls.crt"].decode())
    cloud = Cloud(cluster, trust, "https")
    cloud.extensions["sni_hostname"] = name
    return cloud


def names_of(cluster: Cluster) -> set[str]:
    cloud = cloud_of(cluster)
    live = ("alive", "revived")
    agents = [found["name"] for found in cloud.get("/agents")["agents"] if found["state"] in live]
    return {*agents, *(found["edge"] for found in cloud.get("/edges")["edges"] if found["state"] in live)}


def test_the_quickstart_gives_the_same_bits_with_certificates(
    cluster: Cluster, expected: dict[int, dict[str, Any]]
) -> None:
    found = cloud_of(cluster).ran(QUICKSTART)
    assert {name: found[name] for name in SAME} == expected[QUICKSTART["num_rounds"]]


@pytest.mark.parametrize("name", [USERS, "strata-api", "strata-cloud", "localhost", "fl.example"])
def test_users_reach_the_cloud_by_the_names_of_its_certificate(cluster: Cluster, name: str) -> None:
    assert cloud_of(cluster, name).ask("GET", "/runs").is_success
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        cloud_of(cluster, f"other.{name}").ask("GET", "/runs")


def test_every_node_has_an_identity_of_its_own_and_no_pod_a_tier_token(cluster: Cluster) -> None:
    cluster.until("the fleet", lambda: cloud_of(cluster).get("/topology")["fleet"])
    found = cloud_of(cluster).get("/identities")["identities"]
    names: dict[str, set[str]] = {}
    for each in found:
        names.setdefault(each["node_class"], set()).add(each["name"])
    assert names["edge"] == {"strata-edge-0", "strata-edge-1"}
    assert {name.rpartition("-fleet-")[0] for name in names["fleet"]} == {"kubernetes-strata"}
    assert len(names["device"]) == 2
    for pod in cluster.pods.values():
        assert not any("TIER_TOKEN" in variable for variable in pod.environment())
        assert "tier-token" not in pod.run("ls", "/run/secrets/stratafl").stdout


def test_a_caller_without_a_certificate_opens_no_tier(cluster: Cluster) -> None:
    edge, agent = (cluster.pods[name].address for name in ("strata-edge-0", "strata-device-0"))
    token = cluster.volumes.secrets["strata-tokens"]["tier-token"].decode()
    for url in (f"https://{edge}:8001/nonce", f"https://{agent}:8002/nonce"):
        shown = {"authorization": f"Bearer {token}"}
        assert httpx2.get(url, headers=shown, verify=False, trust_env=False).status_code == 401


def test_a_moved_edge_keeps_its_name_and_a_device_without_a_claim_is_a_new_one(
    cluster: Cluster, expected: dict[int, dict[str, Any]]
) -> None:
    cloud = cloud_of(cluster)
    before = {found["name"]: found["agent"] for found in cloud.get("/agents")["agents"]}
    for name in ("strata-edge-1", "strata-device-0"):
        cluster.delete(name)
    cluster.settle()
    cluster.wait_ready()
    gone = before["strata-device-0"]

    def states() -> list[str]:
        """Of all edges, and of the agents but that which is gone, if it counts as lost."""
        agents = {found["agent"]: found["state"] for found in cloud.get("/agents")["agents"]}
        assert agents.pop(gone) == "lost"
        return [*agents.values(), *(found["state"] for found in cloud.get("/edges")["edges"])]

    cluster.until("all nodes", lambda: answered(lambda: states() == ["alive"] * 4))
    now = {found["name"]: found["agent"] for found in cloud.get("/agents")["agents"] if found["agent"] != gone}
    assert now["strata-device-1"] == before["strata-device-1"]
    assert now["strata-device-0"] != before["strata-device-0"]
    found = cloud.ran({**QUICKSTART, "num_rounds": FEW})
    assert {name: found[name] for name in SAME} == expected[FEW]
