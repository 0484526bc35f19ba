"""Who sees what in the files for Compose and Swarm: tokens, networks, and the volumes with join tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
NODES = {"cloud": "cloud", "edge-1": "edge", "edge-2": "edge", "edge": "edge", "device": "device"}
NODES |= {"device_slow": "device", "fleet": "fleet"}
"""Services that run a tier or the fleet, with their classes."""


def services_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["services"]
    assert {"redis", "cloud", "device"} <= found.keys()
    return found


COMPOSE, STACK = services_of("docker-compose.yml"), services_of("docker-stack.yml")


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
    for name, service in COMPOSE.items():
        seen = {str(volume) for volume in service.get("volumes", []) if str(volume).startswith("join-")}
        if name == "cloud":
            assert seen == {
                f"join-{node_class}:/join/{node_class}" for node_class in ("edge", "device", "fleet", "public")
            }
        elif name == "prometheus":  # sees the authority's certificate, and no token
            assert seen == {"join-public:/join:ro"}
        else:
            assert seen == ({f"join-{NODES[name]}:/join:ro"} if name in NODES else set())


def test_only_the_fleet_sees_the_engines_socket() -> None:
    holders = {name for name, service in COMPOSE.items() if "docker.sock" in str(service.get("volumes", []))}
    assert holders == {"fleet"}
