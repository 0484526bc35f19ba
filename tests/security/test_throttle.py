"""Guessing tokens: an address that shows wrong ones must wait, wherever they are checked, and no other is kept out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import Depends, FastAPI

from cloud_server.dashboard.login import TRIES_PER_MINUTE, Login
from shared.core.errors import Throttled
from shared.service import throttle as throttle_module
from shared.service.app import make_app
from shared.service.auth import guard
from shared.service.body_limit import ANONYMOUS_BYTES, BodyLimit
from shared.service.remote_errors import TRANSIENT
from shared.service.throttle import TRUSTED_S, Throttle

RIGHT, WRONG = "the right token", "a guess"
N = 5


class Clock:
    """A clock that moves when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def guessed(throttle: Throttle, address: str, times: int) -> None:
    for port in range(times):
        assert throttle.admit((address, port), is_right=False) is False


def waits(throttle: Throttle, client: tuple[str, int], *, is_right: bool = True) -> int:
    with pytest.raises(Throttled) as refused:
        throttle.admit(client, is_right=is_right)
    assert refused.value.retry_after_s is not None
    return refused.value.retry_after_s


def test_refused_guesses_neither_prolong_the_wait_nor_count_in_all(clock: Clock) -> None:
    throttle = Throttle(per_minute=N, in_all=2 * N, clock=clock)
    guessed(throttle, "10.0.0.1", N)
    for _ in range(1000):
        waits(throttle, ("10.0.0.1", 1), is_right=False)
    for number in range(N):  # addresses of one IPv6 network count as one
        throttle.admit((f"2001:db8:0:1::{number:x}", 1), is_right=False)
    waits(throttle, ("2001:db8:0:1:ffff::1", 1))
    assert throttle.admit(("2001:db8:0:2::1", 1), is_right=True)
    clock.now += 12
    assert throttle.admit(("10.0.0.1", 99), is_right=True)


def test_after_its_tries_an_address_waits_even_with_the_right_token_and_no_other_does(clock: Clock) -> None:
    throttle = Throttle(per_minute=N, clock=clock)
    guessed(throttle, "10.0.0.1", N)
    assert waits(throttle, ("10.0.0.1", 99)) == waits(throttle, ("10.0.0.1", 99), is_right=False) == 12
    assert waits(throttle, ("::ffff:10.0.0.1", 99)) == 12
    assert throttle.admit(("10.0.0.2", 1), is_right=True)
    clock.now += 11.9
    assert waits(throttle, ("10.0.0.1", 99)) == 1
    clock.now += 0.1
    assert throttle.admit(("10.0.0.1", 99), is_right=True)
    guessed(throttle, "10.0.0.1", 1)
    waits(throttle, ("10.0.0.1", 98))


def test_beyond_the_number_of_all_each_address_has_one_try_and_the_right_token_comes_in(clock: Clock) -> None:
    throttle = Throttle(per_minute=N, in_all=2 * N, clock=clock)
    for number in range(2 * N):
        guessed(throttle, f"10.0.0.{number}", 1)
    guessed(throttle, "10.0.1.1", 1)
    assert waits(throttle, ("10.0.1.1", 5), is_right=False) == 12
    assert waits(throttle, ("10.0.0.1", 5), is_right=False) == 12
    assert throttle.admit(("10.0.1.2", 1), is_right=True)
    clock.now += 60
    guessed(throttle, "10.0.1.1", N)


def test_an_open_connection_with_the_right_token_is_not_shut_out_by_a_guesser_at_its_address(clock: Clock) -> None:
    throttle = Throttle(per_minute=N, clock=clock)
    honest, guesser = ("10.0.0.1", 4000), ("10.0.0.1", 4001)
    assert throttle.admit(honest, is_right=True)
    guessed(throttle, "10.0.0.1", N)
    for _ in range(5):
        waits(throttle, guesser)
        assert throttle.admit(honest, is_right=True)
        waits(throttle, honest, is_right=False)
    clock.now += TRUSTED_S + 1
    guessed(throttle, "10.0.0.1", N)
    waits(throttle, honest)


def test_memory_is_bounded_and_the_oldest_is_forgotten_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle_module, "MAX_ADDRESSES", 10)
    monkeypatch.setattr(throttle_module, "MAX_CONNECTIONS", 10)
    throttle = Throttle(per_minute=1, in_all=10**6, clock=clock)
    for number in range(50):
        throttle.admit((f"10.0.0.{number}", 1), is_right=False)
        throttle.admit((f"10.0.1.{number}", 1), is_right=True)
    assert len(throttle._addresses) == len(throttle._connections) == 10
    waits(throttle, ("10.0.0.49", 2))


# ---- where tokens are checked


def probe(clock: Clock) -> FastAPI:
    """An app whose route needs a token, with the limit on bodies in front of it."""
    throttle = Throttle(per_minute=N, clock=clock)
    app = make_app("probe")
    app.add_middleware(BodyLimit, tokens=(RIGHT,), throttle=throttle)

    @app.post("/guarded", dependencies=[Depends(guard(RIGHT, [], "API", throttle=throttle))])
    async def guarded() -> None:
        """Needs the token."""

    return app


@asynccontextmanager
async def caller(app: Any, address: str, port: int = 1) -> AsyncIterator[httpx2.AsyncClient]:
    inner = httpx2.ASGITransport(app, client=(address, port))
    async with httpx2.AsyncClient(transport=inner, base_url="http://cloud") as http:
        yield http


async def shown(http: httpx2.AsyncClient, token: str, size: int = 0) -> httpx2.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return await http.post("/guarded", content=b"x" * size, headers=headers)


@pytest.mark.parametrize("size", [0, ANONYMOUS_BYTES + 1], ids=["at the guard", "at the limit on bodies"])
async def test_guesses_at_a_route_are_answered_with_429_and_when_to_come_back(clock: Clock, size: int) -> None:
    app = probe(clock)
    async with caller(app, "8.8.8.8") as guesser, caller(app, "8.8.4.4") as user:
        for _ in range(3 * N):
            assert (await shown(guesser, "")).status_code == 401, "no token is no guess"
        assert [(await shown(guesser, WRONG, size)).status_code for _ in range(N + 1)] == [401] * N + [429]
        refused = await shown(guesser, RIGHT)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "12")
        assert refused.json()["code"] == "throttled"
        assert (await shown(user, RIGHT, size)).status_code == 200
        clock.now += 12
        assert (await shown(guesser, RIGHT)).status_code == 200


async def test_the_login_is_throttled_and_says_when_to_come_back(clock: Clock) -> None:
    login = Login(make_app("probe"), RIGHT, [], clock=clock)
    async with caller(login, "8.8.8.8") as guesser, caller(login, "8.8.4.4") as user:
        tries = [await guesser.post("/ui/login", data={"token": WRONG}) for _ in range(TRIES_PER_MINUTE + 1)]
        assert [answer.status_code for answer in tries] == [401] * TRIES_PER_MINUTE + [429]
        assert tries[-1].headers["retry-after"] == "6"
        assert "try again in 6 s" in tries[-1].text
        refused = await guesser.post("/ui/login", data={"token": RIGHT})
        assert (refused.status_code, "set-cookie" in refused.headers) == (429, False)
        assert (await user.post("/ui/login", data={"token": RIGHT})).status_code == 303
        clock.now += 6
        assert (await guesser.post("/ui/login", data={"token": RIGHT})).status_code == 303


def test_a_tier_that_is_told_to_wait_repeats_its_request() -> None:
    assert Throttled in TRANSIENT
