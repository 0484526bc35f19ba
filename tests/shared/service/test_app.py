"""The common parts of the services: settings, tokens, problem+json, the compute thread."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import httpx2
import pytest
from fastapi import Depends, FastAPI, Query
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from starlette.exceptions import HTTPException

from shared.core import versions
from shared.core.addresses import ANYWHERE, LOOPBACK, PRIVATE, inside
from shared.core.errors import BadInput, NotReady, OutOfBound
from shared.core.records import Record
from shared.service import app as app_module
from shared.service.auth import guard
from shared.service.problems import install_problems
from shared.service.settings import CommonSettings, TierSettings

BEYOND = ("100.64.3.7", "130.149.7.201", "2001:638::1")
"""Addresses of a pod and of universities: in no private network."""


class ProbeSettings(TierSettings):
    """Settings of a fake tier."""

    model_config = SettingsConfigDict(env_prefix="PROBE_", extra="ignore", env_ignore_empty=True)

    cloud_url: str = "http://127.0.0.1:8000"


class Inner(Record):
    lr: float = Field(gt=0)


class Order(Record):
    spec: Inner
    body: int = 0


def app(token: str | None = None) -> FastAPI:
    found = FastAPI()
    install_problems(found)

    @found.get("/guarded", dependencies=[Depends(guard(token, PRIVATE, "tier"))])
    async def guarded() -> str:
        return "come in"

    @found.post("/orders")
    async def orders(order: Order, limit: int = Query(default=1, le=10)) -> float:
        return order.spec.lr

    @found.get("/fails/{how}")
    async def fails(how: str) -> None:
        raise {
            "strata": OutOfBound("too much", field="delta.w"),
            "ready": NotReady("1 of 2 edges"),
            "http": HTTPException(418, "a teapot"),
            "bug": ZeroDivisionError("the secret is 7"),
        }[how]

    return found


async def ask(method: str, path: str, server: FastAPI | None = None, client: Any = ("127.0.0.1", 1), **options: Any):
    inner = httpx2.ASGITransport(server or app(), client=client, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=inner, base_url="http://cloud") as http:
        return await http.request(method, path, **options)


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith(("STRATA_", "PROBE_"))]:
        monkeypatch.delenv(name)


# ---- tokens and networks


BEARERS = ("Bearer secret", "bearer secret", "Bearer  secret ")
OTHERS = ("Bearer secre", "Bearer secret2", "Bearer ", "Basic secret", "secret", "Bearer \xe9", None)


@pytest.mark.parametrize("header", [*BEARERS, *OTHERS])
async def test_with_a_token_only_its_bearer_is_accepted(header: str | None) -> None:
    headers = {"authorization": header.encode("latin-1")} if header is not None else {}
    for address in ("127.0.0.1", "8.8.8.8"):
        answer = await ask("GET", "/guarded", app("secret"), (address, 1), headers=headers)
        assert answer.status_code == (200 if header in BEARERS else 401)
    if header in OTHERS:
        assert answer.json()["code"] == "unauthorised"
        assert "tier token" in answer.json()["detail"]
        assert "secret" not in answer.text


async def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = Mock(return_value=False)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    await ask("GET", "/guarded", app("secret"), headers={"authorization": "Bearer other"})
    assert compare.call_args_list == [call(b"other", b"secret")]


@pytest.mark.parametrize("token", [None, ""])
@pytest.mark.parametrize(
    ("address", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("172.18.0.5", 200), ("8.8.8.8", 403), ("2001:db8::1", 403), (None, 403)],
)
async def test_development_mode_answers_private_addresses(token: str | None, address: str | None, status: int) -> None:
    answer = await ask("GET", "/guarded", app(token), (address, 1) if address else None)
    assert answer.status_code == status
    assert status == 200 or answer.json()["detail"] == (
        f"in development mode (no tier token) {address} is in none of the networks {', '.join(map(str, PRIVATE))}: "
        "set tokens, or add its network to ALLOWED_NETWORKS (as CLOUD_ALLOWED_NETWORKS)"
    )


@pytest.mark.parametrize(
    ("tier", "common", "message"),
    [
        ("cloud", {}, "no tier and no API token set"),
        ("cloud", {"tier_token": "a"}, "no API token set"),
        ("cloud", {"api_token": "a"}, "no tier token set"),
        ("cloud", {"tier_token": "a", "api_token": "b"}, None),
        ("edge", {"tier_token": "a"}, None),
        ("agent", {}, "no tier token set"),
    ],
)
def test_development_mode_is_logged(
    tier: str, common: dict[str, Any], message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    app_module.log_mode(tier, ProbeSettings(common=CommonSettings(**common)))
    assert (f"{tier}: DEVELOPMENT MODE, {message}" in caplog.text) if message else not caplog.records


# ---- errors


def assert_problem(answer: httpx2.Response, status: int, code: str, field: str | None = None) -> str:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert set(body) == {"type", "title", "status", "code", "detail", "field"}
    assert (body["status"], body["code"], body["field"]) == (status, code, field)
    assert body["title"] == code.replace("_", " ")
    return str(body["detail"])


async def test_product_errors_are_problems_with_their_field() -> None:
    assert assert_problem(await ask("GET", "/fails/strata"), 422, "out_of_bound", "delta.w") == "too much"
    assert assert_problem(await ask("GET", "/fails/ready"), 503, "not_ready") == "1 of 2 edges"


async def test_errors_of_the_framework_and_of_code_are_problems(caplog: pytest.LogCaptureFixture) -> None:
    assert "GET /nowhere" in assert_problem(await ask("GET", "/nowhere"), 404, "not_found")
    assert_problem(await ask("PUT", "/orders"), 405, "method_not_allowed")
    long = await ask("POST", "/orders", json={"x" * 100_000: 1, "spec": {"lr": 1}})
    assert (long.status_code, len(long.text) < 1000) == (422, True), "a very long name is truncated"
    assert "a teapot" in assert_problem(await ask("GET", "/fails/http"), 418, "http")
    detail = assert_problem(await ask("GET", "/fails/bug"), 500, "internal")
    assert detail == "ZeroDivisionError in GET /fails/bug; see the log"
    assert "the secret is 7" in caplog.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"json": {"spec": {"lr": 0}}}, "spec.lr"),
        ({"json": {"spec": {}}}, "spec.lr"),
        ({"json": {"spec": {"lr": 1, "mu": 1}}}, "spec.mu"),
        ({"json": {"spec": {"lr": 1}, "body": "x"}}, "body"),
        ({"json": {"spec": {"lr": 1}}, "params": {"limit": 11}}, "query.limit"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, None),
        ({}, None),
    ],
    ids=str,
)
async def test_bad_input_names_the_fields_path(options: dict[str, Any], field: str | None) -> None:
    detail = assert_problem(await ask("POST", "/orders", **options), 422, "bad_input", field)
    assert detail.startswith(f"{field}: ") if field else detail


# ---- settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "PROBE_HOST": "0.0.0.0",  # noqa: S104 - only read
        "PROBE_PORT": "8001",
        "PROBE_STATE_DIR": "some/state",
        "PROBE_ALLOWED_NETWORKS": "127.0.0.0/8, 10.0.0.0/8",
        "PROBE_CLOUD_URL": "",  # empty means not set: Compose passes empty variables on
        "STRATA_TIER_TOKEN": "t",
        "STRATA_API_TOKEN": "",
        "STRATA_DATA_DIR": "some/data",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = ProbeSettings()
    assert (found.host, found.port, found.state_dir) == ("0.0.0.0", 8001, Path("some/state"))  # noqa: S104
    assert found.allowed_networks == found.node_networks == PRIVATE[:1] + PRIVATE[2:3]
    assert found.cloud_url == "http://127.0.0.1:8000"
    assert (found.common.tier_token, found.common.api_token) == ("t", None)
    assert found.common.data_dir == Path("some/data")


@pytest.mark.parametrize(
    ("common", "nodes", "users"),
    [({}, PRIVATE, PRIVATE), ({"tier_token": "t"}, ANYWHERE, PRIVATE), ({"secure": True}, ANYWHERE, LOOPBACK)],
)
def test_nodes_that_prove_who_they_are_may_be_in_any_network_unless_one_is_set(
    common: dict[str, Any], nodes: list[Any], users: list[Any]
) -> None:
    found = ProbeSettings(common=CommonSettings(**common))
    assert (found.node_networks, found.user_networks) == (nodes, users)
    assert all(inside(address, found.node_networks) == (nodes is ANYWHERE) for address in BEYOND)
    narrowed = ProbeSettings(common=CommonSettings(**common), allowed_networks="100.64.0.0/10")
    assert [str(network) for network in narrowed.node_networks] == ["100.64.0.0/10"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        *(("PROBE_PORT", value, "PROBE_PORT") for value in ("65536", "x")),
        ("PROBE_TTL_S", "0", "PROBE_TTL_S"),
        ("PROBE_ALLOWED_NETWORKS", "10.0.0.1/8", "PROBE_ALLOWED_NETWORKS"),
        ("PROBE_PROT", "1", r"unknown environment variable PROBE_PROT; did you mean PROBE_PORT\?"),
        ("PROBE_CLOUDURL", "1", r"unknown environment variable PROBE_CLOUDURL; did you mean PROBE_CLOUD_URL\?"),
        ("probe_hosts", "1", r"unknown environment variable probe_hosts; did you mean PROBE_HOST\?"),
    ],
)
def test_a_setting_out_of_bounds_and_a_misspelt_variable_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv("PROBE_CLOUD_URL", "http://user:password@cloud")
    monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=f"^{why}") as refused:
        ProbeSettings()
    assert (refused.value.field or "").startswith(name) or "unknown" in why
    assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "name", "near"),
    [(ProbeSettings, "PROBE_SHELL", ""), (CommonSettings, "STRATA_DATADIR", "; did you mean STRATA_DATA_DIR?")],
)
def test_a_variable_that_may_be_another_programs_gives_a_warning_only(
    settings: type[Any], name: str, near: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "true")
    settings()
    assert caplog.messages == [f"unknown environment variable {name}{near}"]


def test_variables_of_other_programs_pass(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("PLUGINS", "CA_FILE", "LOG_LEVEL", "URL", "HOME", "IMAGE", "REDIS_SERVER", "PORT", "CACHE_DIR"):
        monkeypatch.setenv(f"STRATA_{name}", "x")
    CommonSettings()
    assert not caplog.messages


@pytest.mark.parametrize("name", ["tier_token", "api_token", "metrics_token"])
def test_a_token_is_read_from_a_file(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    word, variable = "!s3cret~", f"STRATA_{name.upper()}"  # the first and the last printable letter count, too
    (tmp_path / "secret").write_text(f"{word}\n", encoding="ascii")
    monkeypatch.setenv("STRATA_TIER_TOKEN_FILE", "")  # Compose passes empty variables on
    assert CommonSettings().tier_token is None
    monkeypatch.setenv(variable, "")
    monkeypatch.setenv(f"{variable}_FILE", str(tmp_path / "secret"))
    found = ProbeSettings().common
    tokens = ("tier_token", "api_token", "metrics_token")
    assert {key: getattr(found, key) for key in tokens if getattr(found, key)} == {name: word}
    monkeypatch.setenv(variable, "other")
    with pytest.raises(BadInput, match=f"{variable} and {variable}_FILE are both set"):
        CommonSettings()


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),  # it would otherwise open the tier to the local network
        (b" \n", "is empty"),
        (b"two words", "holds no token"),
        (b"one\ntwo", "holds no token"),
        ("sécret".encode(), "holds no token"),
        (b"s" * 4097, "holds no token"),
    ],
    ids=str,
)
def test_a_file_without_a_token_is_refused_and_its_text_not_shown(
    held: bytes | None, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token.txt"
    if held is not None:
        path.write_bytes(held)
    monkeypatch.setenv("STRATA_TIER_TOKEN_FILE", str(path))
    with pytest.raises(BadInput, match=f"STRATA_TIER_TOKEN_FILE: .*token.txt {why}") as caught:
        CommonSettings()
    assert not any(word in str(caught.value) for word in ("two", "cret", "sss"))


# ---- health


def test_health_names_tier_version_and_status() -> None:
    known = {"tier": "edge", "version": versions.VERSION, "missing": (), "warnings": ()}
    assert app_module.health("edge").model_dump() == {**known, "status": "ok"}
    assert app_module.health("edge", ("the cloud",)).status == "not_ready"
