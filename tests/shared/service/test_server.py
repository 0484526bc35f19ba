"""The server that every tier runs: its socket, its settings, its start and end."""

from __future__ import annotations

import logging
import resource
import signal
import socket
from functools import partial
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI, Request

from edge_server.settings import EdgeSettings
from shared.identity.node_keys import NodeKeys
from shared.runtime import compute_thread
from shared.service import app as app_module
from shared.service import server
from shared.service.settings import TierSettings

probe_app = partial(app_module.make_app, "probe")


def test_a_free_port_is_bound_and_reported_and_a_socket_can_be_inherited() -> None:
    settings = TierSettings(port=0)
    with server.listen(settings) as bound:
        assert settings.port == bound.getsockname()[1] > 0
        with socket.create_connection(("127.0.0.1", settings.port), timeout=5):
            pass
    with socket.create_server(("127.0.0.1", 0)) as given:
        port = given.getsockname()[1]
        settings = TierSettings(port=1, fd=given.detach())
        with server.listen(settings) as bound:
            assert settings.port == bound.getsockname()[1] == port


class FakeServer:
    """A server that starts or fails to start, and ends at once."""

    starts = True

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        self.started = False

    def run(self, sockets: list[Any]) -> None:
        self.started = self.starts
        for found in sockets:
            found.close()


def no_keys(settings: TierSettings) -> NodeKeys:
    raise AssertionError("a node needs keys in secure mode only")


@pytest.fixture
def quiet_serve(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`serve` with a fake server and without effect on this process; the log levels that it set."""
    levels: list[Any] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: levels.append(options["level"]))
    monkeypatch.setattr(server, "Server", FakeServer)
    monkeypatch.setattr(compute_thread, "pin_threads", lambda: None)
    return levels


def test_the_log_level_may_be_lower_case_and_a_tier_that_could_not_start_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, quiet_serve: list[Any]
) -> None:
    monkeypatch.setenv("STRATA_LOG_LEVEL", "debug")
    server.serve("probe", TierSettings, lambda settings, keys: probe_app(), no_keys)
    assert set(quiet_serve) == {"DEBUG"}  # before and after the settings have been read
    monkeypatch.setattr(FakeServer, "starts", False)
    with pytest.raises(SystemExit, match="probe could not start"):
        server.serve("probe", TierSettings, lambda settings, keys: probe_app(), no_keys)


def test_a_tier_with_a_wrong_setting_ends_with_its_variable_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_PORT", "x")
    with pytest.raises(SystemExit, match=r"^edge could not start: EDGE_PORT: must be a whole number$"):
        server.serve("edge", EdgeSettings, lambda settings, keys: probe_app(), no_keys)


def test_connections_take_half_of_open_files(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    setrlimit = Mock()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert server.limits_of(TierSettings(max_connections=10_000)).connections == 2048
    assert setrlimit.call_args.args[1] == (4096, 4096)
    assert "no more than 2048 connections are taken" in caplog.text
    caplog.clear()
    assert server.limits_of(TierSettings(max_connections=100)).connections == 100
    assert "connections are taken" not in caplog.text


async def test_no_header_changes_the_address_of_a_caller() -> None:
    """By default uvicorn trusts X-Forwarded-For of loopback callers; the product must call the real source back."""
    probe = probe_app()

    @probe.get("/source")
    async def source(request: Request) -> str:
        return request.client.host if request.client else ""

    config = server.configure(probe, TierSettings())
    config.load()
    inner = httpx2.ASGITransport(config.loaded_app, client=("127.0.0.1", 1))
    forged = {"x-forwarded-for": "10.1.2.3", "forwarded": "for=10.1.2.3", "x-real-ip": "10.1.2.3"}
    async with httpx2.AsyncClient(transport=inner, base_url="http://cloud") as http:
        assert (await http.get("/source", headers=forged)).json() == "127.0.0.1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_that_was_ignored_before_does_not_end_a_server(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        serving = server.Server(uvicorn.Config(found := probe_app()), found)
        with serving.capture_signals():
            signal.raise_signal(number)
        assert not serving.should_exit
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
