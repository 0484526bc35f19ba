"""Variables that Kubernetes sets for Services are no settings: they are passed over, and said once."""

from __future__ import annotations

import logging

import pytest

from cloud_server.settings import CloudSettings
from device_agent.settings import AgentSettings
from edge_server.settings import EdgeSettings
from shared.core.errors import BadInput
from shared.service.settings import TierSettings
from strata.fleet.settings import FleetSettings

TIERS: list[type[TierSettings]] = [CloudSettings, EdgeSettings, AgentSettings]


def set_links(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    """What Kubernetes sets for a Service with the port 8000."""
    links = {
        "PORT": "tcp://10.96.12.7:8000",
        "PORT_8000_TCP": "tcp://10.96.12.7:8000",
        "PORT_8000_TCP_ADDR": "10.96.12.7",
        "PORT_8000_TCP_PORT": "8000",
        "PORT_8000_TCP_PROTO": "tcp",
        "SERVICE_HOST": "10.96.12.7",
        "SERVICE_PORT": "8000",
        "SERVICE_PORT_HTTP": "8000",
    }
    for name, value in links.items():
        monkeypatch.setenv(f"{service}_{name}", value)


@pytest.mark.parametrize("settings", TIERS)
def test_service_links_are_passed_over_with_one_line(
    settings: type[TierSettings], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, prefix = settings().port, str(settings.model_config["env_prefix"])
    for service in (prefix.rstrip("_"), f"{prefix}REDIS", f"{prefix}ADVERTISE"):  # Services edge, edge-redis, ...
        set_links(monkeypatch, service)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = settings()
    assert found.port == plain
    assert getattr(found, "advertise_port", None) is None
    lines = [record.getMessage() for record in caplog.records if f"{prefix}PORT" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"{prefix}ADVERTISE_PORT, {prefix}PORT, {prefix}REDIS_PORT and 21 more: service links")
    assert "enableServiceLinks: false" in lines[0]


def test_a_port_that_a_pod_names_holds_beside_service_links(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in ("CLOUD", "FLEET", "FLEET_CLOUD", "STRATA", "STRATA_REDIS_SERVER"):
        set_links(monkeypatch, service)
    monkeypatch.setenv("CLOUD_PORT", "8123")
    assert CloudSettings().port == 8123
    assert FleetSettings().cloud_url == "http://cloud:8000"
    for value in ("http://10.0.0.1:8000", "tcp", "10.0.0.1:8000"):
        monkeypatch.setenv("CLOUD_PORT", value)
        with pytest.raises(BadInput, match="CLOUD_PORT: must be a whole number"):
            CloudSettings()
