"""The fleet's client of the API server of Kubernetes: what it asks, and how each refusal reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.errors import BadInput
from shared.identity.authority import make_authority
from strata.fleet.scale_api import ClusterError, Scale, ScaleApi
from strata.fleet.settings import FleetSettings

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
SCALE = {"metadata": {"resourceVersion": "41"}, "spec": {"replicas": 3}, "status": {"replicas": 2}}
Answer = httpx2.Response | Exception


@pytest.fixture(scope="module")
def pem() -> str:
    return make_authority().pem


@pytest.fixture
def account(tmp_path: Path, pem: str) -> Path:
    """The files of a service account as a pod finds them."""
    for name, text in {"token": "first\n", "ca.crt": pem, "namespace": "fl"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def api_of(account: Path) -> Callable[[Answer], tuple[ScaleApi, list[httpx2.Request]]]:
    """Returns a client whose server always gives one answer, and its requests."""

    def made(answer: Answer) -> tuple[ScaleApi, list[httpx2.Request]]:
        seen: list[httpx2.Request] = []

        def answered(request: httpx2.Request) -> httpx2.Response:
            seen.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ScaleApi(account, POD, httpx2.MockTransport(answered)), seen

    return made


def test_a_scale_is_read_with_the_token_of_that_moment(api_of: Any, account: Path) -> None:
    api, seen = api_of(httpx2.Response(200, json=SCALE))
    assert api.read("strata-device") == Scale(wanted=3, running=2, version="41")
    (account / "token").write_text("second")  # Kubernetes replaces it in time
    api.read("strata-device")
    assert str(seen[0].url) == "https://10.96.0.1/apis/apps/v1/namespaces/fl/statefulsets/strata-device/scale"
    assert [request.headers["authorization"] for request in seen] == ["Bearer first", "Bearer second"]


def test_a_number_that_is_left_out_is_0(api_of: Any) -> None:
    api, _ = api_of(httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "spec": {}}))
    assert api.read("strata-device") == Scale(wanted=0, running=0, version="1")


def test_a_change_names_the_version_that_was_read(api_of: Any) -> None:
    api, seen = api_of(httpx2.Response(200, json=SCALE))
    api.write("strata-device", 4, "41")
    assert (seen[0].method, seen[0].headers["content-type"]) == ("PATCH", "application/merge-patch+json")
    assert json.loads(seen[0].content) == {"metadata": {"resourceVersion": "41"}, "spec": {"replicas": 4}}


STATUS = {"kind": "Status", "message": "said the server"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx2.Response(401, json=STATUS), r"does not accept the service account's token .*401: said the server"),
        (
            httpx2.Response(403, json=STATUS),
            r"may not get statefulsets/scale of StatefulSet strata-device of ",
        ),
        (httpx2.Response(404, json=STATUS), r"there is no StatefulSet strata-device .*FLEET_SETS"),
        (httpx2.Response(409, json=STATUS), r"was changed at the same time; the fleet tries again"),
        (httpx2.Response(503, text="\n<html>"), r"refused to get the scale of .* \(503: <html>\)"),
        (httpx2.Response(302, headers={"location": "https://evil"}), r"\(302: without a word\)"),
        (httpx2.Response(200, text="hello"), "is no scale"),
        (httpx2.Response(200, json={"spec": {"replicas": 1}}), "is no scale"),
        (httpx2.Response(200, json=SCALE | {"spec": {"replicas": -1}}), "is no scale"),
        (httpx2.Response(200, json=SCALE | {"spec": {"replicas": 10**9}}), "is no scale"),
        (httpx2.ConnectError("refused"), r"at https://10\.96\.0\.1:443 does not answer: ConnectError: refused"),
        (httpx2.ReadTimeout("late"), "does not answer: ReadTimeout: late"),
    ],
)
def test_any_other_answer_is_an_error_that_says_who_refused_what(api_of: Any, answer: Answer, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        api_of(answer)[0].read("strata-device")


def test_a_token_that_is_gone_is_an_error(api_of: Any, account: Path) -> None:
    api, seen = api_of(httpx2.Response(200, json=SCALE))
    (account / "token").unlink()
    with pytest.raises(ClusterError, match=r"token, .* cannot be read: No such file"):
        api.read("strata-device")
    assert seen == []


def test_outside_a_pod_and_without_a_service_account_the_fleet_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="KUBERNETES_SERVICE_HOST is not set: FLEET_SET_PREFIX is for a fleet in a pod"):
        ScaleApi(tmp_path, {})
    with pytest.raises(BadInput, match="no files of a service account"):
        ScaleApi(tmp_path / "none", POD)


def test_an_api_server_may_have_an_ipv6_address(account: Path) -> None:
    assert ScaleApi(account, {"KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"


def test_sets_are_named_with_the_devices_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_SETS", "device:1, slow:4")
    assert FleetSettings().sets == {"device": 1, "slow": 4}
    for wrong in ("device", "device:0", "device:1,device:2", ","):
        monkeypatch.setenv("FLEET_SETS", wrong)
        with pytest.raises(BadInput, match="FLEET_SETS"):
            FleetSettings()
    monkeypatch.setenv("FLEET_SETS", "")
    assert (FleetSettings().sets, FleetSettings().set_prefix) == ({}, None)
