"""The fleet's client of the cloud, and its settings."""

from __future__ import annotations

import json

import httpx2
import pytest

from shared.core.errors import BadInput, OtherProtocol, StrataError, Unreachable, WireError
from shared.service.api.membership import FleetOrders, FleetReport
from shared.service.protocol import PROTOCOL_HEADER, SAID
from strata.fleet.cloud_client import CloudClient
from strata.fleet.settings import FleetSettings

REPORT = FleetReport(fleet="f", services={"device": None}, wanted={"device": 3}, error="no room")


def line(answer: httpx2.Response | Exception, seen: list[httpx2.Request]) -> CloudClient:
    def answered(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return CloudClient("http://cloud:1", "secret", transport=httpx2.MockTransport(answered))


def test_a_report_is_sent_with_the_tier_token_and_answered_by_orders() -> None:
    seen: list[httpx2.Request] = []
    with line(httpx2.Response(200, json={"wanted": {"device": 4}, "released": ["x"]}, headers=SAID), seen) as cloud:
        assert cloud.report(REPORT) == FleetOrders(wanted={"device": 4}, released=("x",))
    assert (seen[0].method, str(seen[0].url)) == ("POST", "http://cloud:1/fleet")
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert seen[0].headers[PROTOCOL_HEADER] == SAID[PROTOCOL_HEADER]
    assert FleetReport.model_validate(json.loads(seen[0].content)) == REPORT


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            httpx2.Response(409, json={"detail": "fleet g is connected already", "code": "conflict"}),
            StrataError,
            "g is connected",
        ),
        (httpx2.Response(302, headers={"location": "http://evil"}), StrataError, "status 302"),
        (httpx2.Response(200, text="hello", headers=SAID), WireError, "gave invalid orders"),
        (httpx2.Response(200, json={"wanted": {}}), OtherProtocol, "says no protocol, so it is older"),
        (httpx2.ConnectError("refused"), Unreachable, "refused"),
        (httpx2.ReadTimeout("late"), Unreachable, "late"),
    ],
)
def test_any_other_answer_is_a_strata_error(
    answer: httpx2.Response | Exception, kind: type[StrataError], message: str
) -> None:
    with line(answer, []) as cloud, pytest.raises(kind, match=message):
        cloud.report(REPORT)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_SERVICES", "device, device_slow")
    monkeypatch.setenv("FLEET_DRAIN_S", "5")
    settings = FleetSettings()
    assert (settings.services, settings.drain_s) == (("device", "device_slow"), 5.0)
    monkeypatch.setenv("FLEET_SERVICE", "device")
    with pytest.raises(BadInput, match="did you mean FLEET_SERVICES"):
        FleetSettings()
