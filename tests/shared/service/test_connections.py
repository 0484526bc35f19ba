"""Ctrl-C at any moment of a request leaves connections that answer the next one and can be closed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from itertools import count, islice
from types import FrameType
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from shared.service.connections import Connections
from tests.strata.fake_cloud import served
from tests.waits import HANG_S


class Interrupt:
    """Raises `KeyboardInterrupt` in this thread where Python looks for signals: it begins a function, or left one of C.

    Python looks at the end of a loop's turn too, which no hook tells.
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def interrupted(work: Callable[[], Any], at: int) -> bool:
    """Whether some work was interrupted before its end."""
    sys.setprofile(Interrupt(at))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = FastAPI()

    @app.get("/here")
    async def here() -> str:
        return "here"

    @app.get("/many")
    async def many() -> StreamingResponse:
        return StreamingResponse(f"{n}\n" for n in range(3))

    with served(app) as found:
        yield found


def lines(response: httpx2.Response) -> Generator[str, None, None]:
    yield from response.iter_lines()


def ask(connections: Connections, url: str) -> str:
    return str(connections.request("GET", f"{url}/here").json())


def read(connections: Connections, url: str) -> list[str]:
    return list(connections.stream(lines, "GET", f"{url}/many"))


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("work", "result"), [(ask, "here"), (read, ["0", "1", "2"])])
def test_after_an_interrupt_at_any_step_connections_answer_and_close(
    url: str, work: Callable[[Connections, str], Any], result: Any, stride: int
) -> None:
    for at in count(1, stride):
        with Connections() as connections:
            assert work(connections, url) == result  # so that there is a connection to use again
            if not interrupted(lambda connections=connections: work(connections, url), at):  # type: ignore[misc]
                break
            assert work(connections, url) == result
    assert at > 10


def test_an_item_is_read_when_it_is_asked_for_and_the_answer_closed_when_no_more_is_wanted() -> None:
    taken, closed = list[int](), threading.Event()

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for n in range(1000):
                taken.append(n)
                yield b"%d\n" % n

        def close(self) -> None:
            closed.set()

    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=Body()))
    with Connections(transport=transport) as connections:
        items = connections.stream(lines, "GET", "http://a")
        assert list(islice(items, 3)) == ["0", "1", "2"]
        assert len(taken) < 10
        items.close()
        assert closed.wait(HANG_S)
    assert len(taken) < 10


def test_an_error_of_the_connection_and_one_of_the_reader_are_raised_where_the_items_are_taken() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("nobody listens", request=request)

    def fail(response: httpx2.Response) -> Generator[str, None, None]:
        yield "first"
        raise ValueError(f"status {response.status_code}")

    with (
        Connections(transport=httpx2.MockTransport(refuse)) as connections,
        pytest.raises(httpx2.ConnectError, match="nobody listens"),
    ):
        connections.request("GET", "http://a")
    with Connections(transport=httpx2.MockTransport(lambda request: httpx2.Response(204))) as connections:
        items = connections.stream(fail, "GET", "http://a")
        assert next(items) == "first"
        with pytest.raises(ValueError, match="status 204"):
            next(items)


def test_a_forked_process_has_connections_of_its_own() -> None:
    """On a shared one, each of the two processes would read answers to the other's requests."""
    app = FastAPI()

    @app.get("/port")
    def port(request: Request) -> int:
        return request.client.port if request.client else 0

    with served(app) as url, Connections(base_url=url) as connections:
        ours = [connections.request("GET", "/port").json() for _ in range(2)]
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(writer, connections.request("GET", "/port").content)
            connections.close()
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        theirs = int(os.read(reader, 16))
        os.close(reader)
        ours.append(connections.request("GET", "/port").json())
    assert len(set(ours)) == 1
    assert theirs not in ours
