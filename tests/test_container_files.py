"""The files for Compose and Swarm: who sees which tokens, networks and volumes; settings and logs of services."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud_server.settings import CloudSettings
from device_agent.settings import AgentSettings
from edge_server.settings import EdgeSettings
from shared.core.versions import VERSION
from shared.service.settings import CommonSettings, Environment
from strata.fleet.settings import FleetSettings

ROOT = Path(__file__).resolve().parent.parent
NODES = {"cloud": "cloud", "edge": "edge", "device": "device"}
NODES |= {"device_slow": "device", "fleet": "fleet"}
"""Services that run a tier or the fleet, with their classes."""


def services_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["services"]
    assert {"redis", "cloud", "device"} <= found.keys()
    return found


COMPOSE, STACK = services_of("docker-compose.yml"), services_of("docker-stack.yml")
SECURE_STACK = yaml.safe_load((ROOT / "docker-stack.secure.yml").read_text(encoding="utf-8"))["services"]
SETTINGS: dict[str, type[Environment]] = {
    "CLOUD_": CloudSettings,
    "EDGE_": EdgeSettings,
    "AGENT_": AgentSettings,
    "FLEET_": FleetSettings,
    "STRATA_": CommonSettings,
}
CERTIFICATES = {"CLOUD_CERTIFICATE_HOSTS", "CLOUD_CERTIFICATE_S"}
MLFLOW = {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
LOGS = {"STRATA_LOG_LEVEL", "STRATA_LOG_FORMAT"}


@pytest.mark.parametrize("services", [COMPOSE, STACK], ids=["compose", "stack"])
def test_only_the_cloud_knows_the_users_token(services: dict[str, Any]) -> None:
    holders = set()
    for name, service in services.items():
        if "STRATA_API_TOKEN" in str(service.get("environment", {})) or "api_token" in str(service.get("secrets", [])):
            holders.add(name)
    assert holders == {"cloud"}


@pytest.mark.parametrize("services", [COMPOSE, STACK], ids=["compose", "stack"])
def test_devices_do_not_reach_redis(services: dict[str, Any]) -> None:
    redis = set(services["redis"]["networks"])
    reach = {name for name, service in services.items() if redis & set(service["networks"])} - {"redis"}
    assert {NODES[name] for name in reach} == {"cloud", "edge"}


@pytest.mark.parametrize("services", [COMPOSE, STACK], ids=["compose", "stack"])
def test_nodes_reach_each_other_by_one_network_alone(services: dict[str, Any]) -> None:
    """An edge is called at the address from which it registered, so it must be one that devices reach."""
    networks = {name: set(service["networks"]) for name, service in services.items() if name in NODES}
    for name, own in networks.items():
        for other, theirs in networks.items():
            if NODES[name] != NODES[other]:
                assert own & theirs == {"tiers"}, (name, other)


def test_each_class_sees_its_own_join_token_alone() -> None:
    """No mount copies the image's folder: containers made at once would race in it."""
    for name, service in COMPOSE.items():
        seen = {str(volume) for volume in service.get("volumes", []) if str(volume).startswith("join-")}
        if name == "cloud":
            assert seen == {
                f"join-{node_class}:/join/{node_class}" for node_class in ("edge", "device", "fleet", "public")
            }
        elif name == "prometheus":  # sees the authority's certificate, and no token
            assert seen == {"join-public:/join:ro,nocopy"}
        else:
            assert seen == ({f"join-{NODES[name]}:/join:ro,nocopy"} if name in NODES else set())


def test_only_the_fleet_sees_the_engines_socket() -> None:
    holders = {name for name, service in COMPOSE.items() if "docker.sock" in str(service.get("volumes", []))}
    assert holders == {"fleet"}


# ---- settings and logs


def variables_of(services: dict[str, Any], name: str) -> dict[str, str]:
    return dict(services.get(name, {}).get("environment", {}))


@pytest.mark.parametrize("services", [COMPOSE, STACK], ids=["compose", "stack"])
def test_no_service_keeps_more_than_three_log_files_of_10_mb(services: dict[str, Any]) -> None:
    expected = {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
    assert {name: service.get("logging") for name, service in services.items()} == dict.fromkeys(services, expected)


@pytest.mark.parametrize("services", [COMPOSE, STACK, SECURE_STACK], ids=["compose", "stack", "secure stack"])
def test_variables_of_a_service_are_settings_that_exist(services: dict[str, Any]) -> None:
    named = [(node, name) for node in NODES for name in variables_of(services, node)]
    for service, name in named:
        found = [(prefix, kind) for prefix, kind in SETTINGS.items() if name.startswith(prefix)]
        for prefix, kind in found:
            assert name.removeprefix(prefix).lower() in {*kind.model_fields, *kind.also_known}, (service, name)
        assert found or name in {*MLFLOW, "HEALTH_PORT"}, (service, name)


def test_services_get_the_settings_that_the_environment_may_set() -> None:
    assert variables_of(COMPOSE, "cloud").keys() >= MLFLOW | CERTIFICATES
    assert variables_of(STACK, "cloud").keys() >= MLFLOW
    assert variables_of(SECURE_STACK, "cloud").keys() >= CERTIFICATES
    for services in (COMPOSE, STACK):
        assert all(variables_of(services, name).keys() >= LOGS for name in NODES if name in services)
    for service, name in (("cloud", "CLOUD"), ("edge", "EDGE"), ("device", "AGENT")):
        assert variables_of(STACK, service)[f"{name}_ALLOWED_NETWORKS"] == f"${{{name}_ALLOWED_NETWORKS:-}}"
    default = FleetSettings.model_fields["drain_s"].default
    assert variables_of(COMPOSE, "fleet")["FLEET_DRAIN_S"] == f"${{FLEET_DRAIN_S:-{default:g}}}"


def test_no_secret_but_those_of_trackers_is_in_the_environment_of_the_stack() -> None:
    names = {name for service in STACK for name in variables_of(STACK, service)}
    assert {name for name in names if re.search("(TOKEN|PASSWORD)$", name)} <= MLFLOW


def test_empty_variables_leave_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, type[Environment]] = {"cloud": CloudSettings, "edge": EdgeSettings, "device": AgentSettings}
    for service, kind in kinds.items():
        for name, value in (variables_of(STACK, service) | variables_of(SECURE_STACK, service)).items():
            if str(value).endswith(":-}"):
                monkeypatch.setenv(name, "")
        found = kind()
        for name in ("allowed_networks", "certificate_hosts", "certificate_s", "profile"):
            if name in kind.model_fields:
                assert getattr(found, name) == kind.model_fields[name].get_default(call_default_factory=True), name


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker-stack.yml", "docker-stack.secure.yml"])
def test_the_head_of_a_file_names_each_variable_that_it_reads(file: str) -> None:
    head, _, rest = (ROOT / file).read_text(encoding="utf-8").partition("\nversion:")
    read = set(re.findall(r"\$\{([A-Z_]+):-", rest))
    assert read
    assert sorted(name for name in read if not re.search(rf"\b{name}\b", head)) == []


def test_the_chart_for_kubernetes_has_this_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "stratafl" / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
