"""A cloud that does not answer is waited for by one rule: not at the first request, then for a stated time."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

import strata as strata_api
from shared.core.errors import BadInput, NotFound, StrataError, Unreachable
from strata.api.client import Client
from strata.launcher.process import ProcessDied
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud
from tests.strata.samples import a_run

GONE = httpx2.ConnectError("[Errno 111] Connection refused")
BROKEN = httpx2.ReadError("")
Answer = Exception | httpx2.Response


class Time:
    """A clock that only sleeping moves."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def ok() -> httpx2.Response:
    return httpx2.Response(200, content=a_run().model_dump_json())


def died() -> None:
    raise ProcessDied("cloud ended (signal SIGKILL)")


def problem(status: int, code: str) -> httpx2.Response:
    body = {"title": code, "status": status, "code": code, "detail": f"it is {code}"}
    return httpx2.Response(status, content=json.dumps(body))


def client(time: Time, answers: Iterator[Answer], **options: Any) -> Client:
    """Returns a client that gets these answers one after another, the last one for ever."""
    last: list[Answer] = []

    def answer(_: httpx2.Request) -> httpx2.Response:
        last[:] = [next(answers, last[0] if last else GONE)]
        if isinstance(last[0], Exception):
            raise last[0]
        return last[0]

    found = Client("http://cloud.test", transport=httpx2.MockTransport(answer), **options)
    found._outages._clock, found._outages._sleep = lambda: time.now, time.sleep
    return found


def test_a_cloud_that_comes_back_is_waited_for_and_said_so_once(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    with client(time, iter([ok(), *[GONE] * 20, problem(503, "store_unavailable"), BROKEN, ok()])) as cloud:
        cloud.run("r1")
        assert cloud.run("r1").run == "r1"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        "the cloud at http://cloud.test does not answer (no cloud answers at http://cloud.test ([Errno 111] Connection"
        " refused)); waiting up to 120 s",
        "the cloud at http://cloud.test answers again",
    ]
    assert 20 < time.now < 60


def test_the_wait_ends_when_it_said(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_RECONNECT_S", "7.5")
    with client(time, iter([ok(), GONE])) as cloud:
        cloud.run("r1")
        with pytest.raises(Unreachable, match="Connection refused"):
            cloud.run("r1")
    assert time.now == 7.5
    monkeypatch.setenv("STRATA_RECONNECT_S", "soon")
    with pytest.raises(BadInput, match="STRATA_RECONNECT_S: 'soon' is not a number of seconds"):
        client(time, iter([]))


@pytest.mark.parametrize("answer", [GONE, httpx2.ConnectTimeout(""), httpx2.ReadTimeout(""), problem(502, "bad")])
def test_a_wrong_address_fails_at_once(time: Time, answer: Answer) -> None:
    with client(time, iter([answer])) as cloud, pytest.raises(StrataError):
        cloud.run("r1")
    assert time.now == 0


@pytest.mark.parametrize(
    ("answer", "check", "error"),
    [(problem(404, "not_found"), lambda: None, NotFound), (GONE, died, ProcessDied)],
    ids=["a refusal", "a cloud that cannot come back"],
)
def test_what_no_wait_can_change_is_told_at_once(
    time: Time, answer: Answer, check: Callable[[], None], error: type[StrataError]
) -> None:
    with client(time, iter([ok(), answer]), check=check) as cloud:
        cloud.run("r1")
        with pytest.raises(error):
            cloud.run("r1")
    assert time.now == 0


def test_a_cloud_that_starts_is_waited_for_from_the_first_request_on(time: Time) -> None:
    with client(time, iter([*[problem(503, "store_unavailable")] * 5, ok()])) as cloud:
        assert cloud.run("r1").run == "r1"
    with client(time, iter([problem(503, "standing_by"), ok()])) as cloud, pytest.raises(StrataError):
        cloud.run("r1")


def test_what_may_have_been_done_is_not_repeated(time: Time) -> None:
    with client(time, iter([ok(), GONE, ok(), BROKEN, ok()])) as cloud:
        cloud.run("r1")
        assert cloud.stop("r1").run == "r1", "nothing had been sent"
        with pytest.raises(Unreachable):
            cloud.stop("r1")


# ---- at the door


@pytest.mark.parametrize("way", ["run", "watch", "wait", "sweep"])
def test_who_follows_a_run_outlives_a_restart_of_its_cloud(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Any, way: str
) -> None:
    cloud.away_times, cloud.breaks_after = 4, 6
    cloud.files = {"run.json": lambda run: cloud.runs[run].model_dump_json().encode()}
    if way in ("watch", "wait"):
        cloud.change("r1", status="running", rounds=0, accuracy=None)
    if way == "wait":
        with strata_api.connect(url) as connected:
            assert connected.get_run("r1").wait(progress=False).status == "completed"
    else:
        arguments = {"run": [spec_file], "watch": ["r1"], "sweep": [spec_file, "lr=0.1,0.2"]}[way]
        result = strata(way, *arguments, "--url", url)
        assert (result.code, cloud.away_times) == (0, 0), result.err
    assert cloud.away_times == 0
