"""Tests of the proxy: each fault does what its name says, and everything else passes unchanged."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shared.service.order_headers import ORDER_KEY_HEADER
from tests.soak.proxy import HOST, Fault, Proxy
from tests.waits import until

BODY = bytes(range(256)) * 40


class Node(BaseHTTPRequestHandler):
    """Answers an order with the order's own body and its place."""

    protocol_version = "HTTP/1.1"
    bodies: list[bytes] = []  # noqa: RUF012 - of the one server of a test
    read_s: list[float] = []  # noqa: RUF012 - seconds from the first byte of each of them to its last

    def do_POST(self) -> None:
        first, began = self.rfile.read(1), time.monotonic()
        body = first + self.rfile.read(int(self.headers["content-length"]) - 1)
        self.read_s.append(time.monotonic() - began)
        self.bodies.append(body)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header(ORDER_KEY_HEADER, self.headers[ORDER_KEY_HEADER])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    node = ThreadingHTTPServer((HOST, 0), Node)
    Node.bodies, Node.read_s = [], []
    thread = threading.Thread(target=node.serve_forever, daemon=True)
    thread.start()
    with Proxy(seed=1) as made:
        made.listen_before("node", lambda: int(node.server_address[1]))
        yield made
    node.shutdown()
    node.server_close()
    thread.join(5)


def pieces(proxy: Proxy, path: str = "/visits", run: str = "r1") -> Iterator[bytes]:
    """Yields the bytes of the answer to an order as they come, until it is whole or the connection is closed."""
    head = f"POST {path} HTTP/1.1\r\n{ORDER_KEY_HEADER}: visits/{run}/1\r\ncontent-length: {len(BODY)}\r\n\r\n"
    with socket.create_connection((HOST, proxy.routes["node"].port), timeout=10) as connection:
        connection.sendall(head.encode() + BODY)
        got = b""
        while len(body_of(got)) < len(BODY) and (piece := connection.recv(65536)):
            got += piece
            yield piece


def ask(proxy: Proxy, path: str = "/visits", run: str = "r1") -> bytes:
    """Returns all bytes of the answer to an order; raises ConnectionResetError if the connection is reset."""
    return b"".join(pieces(proxy, path, run))


def body_of(raw: bytes) -> bytes:
    return raw.partition(b"\r\n\r\n")[2]


def test_exchange_without_an_armed_fault_is_unchanged(proxy: Proxy) -> None:
    assert body_of(ask(proxy)) == BODY
    proxy.arm("node", Fault("reset"))
    assert body_of(ask(proxy, "/nonce")) == BODY  # not an order: the fault stays armed
    proxy.disarm()
    assert body_of(ask(proxy)) == BODY
    assert proxy.done == []


def test_reset_ends_the_connection_without_an_answer(proxy: Proxy) -> None:
    proxy.arm("node", Fault("reset"))
    with pytest.raises(ConnectionResetError):
        ask(proxy)
    assert body_of(ask(proxy)) == BODY
    assert proxy.done == [("reset", "node")]


def test_half_a_body_has_the_content_length_of_the_whole(proxy: Proxy) -> None:
    proxy.arm("node", Fault("half"))
    got = b""
    with suppress(ConnectionResetError):
        for piece in pieces(proxy):
            got += piece
    head, _, half = got.partition(b"\r\n\r\n")
    assert f"content-length: {len(BODY)}".encode() in head.lower()
    assert half == BODY[: len(BODY) // 2]


@pytest.mark.parametrize("kind", ["late", "loris_up", "loris_down"])
def test_slow_kinds_take_their_time_and_deliver_everything(kind: str, proxy: Proxy) -> None:
    proxy.arm("node", Fault(kind, 1.5))
    began = time.monotonic()
    found = [*pieces(proxy)]
    assert body_of(b"".join(found)) == BODY
    assert time.monotonic() - began >= 1.2
    if kind != "late":
        assert len(found) > 3 if kind == "loris_down" else Node.read_s[0] > 0.3, "it comes in pieces"


def test_garbled_bodies_keep_their_length_in_both_directions(proxy: Proxy) -> None:
    proxy.arm("node", Fault("garble_up"))
    ask(proxy)
    proxy.arm("node", Fault("garble_down"))
    down = body_of(ask(proxy))
    assert len(Node.bodies[0]) == len(down) == len(BODY)
    assert Node.bodies[0] != BODY
    assert Node.bodies[1] == BODY
    assert down != BODY


def test_repeated_request_is_answered_once(proxy: Proxy) -> None:
    proxy.arm("node", Fault("twice"))
    assert body_of(ask(proxy)) == BODY
    until("both requests", lambda: len(Node.bodies) >= 3)
    assert Node.bodies == [BODY] * 3


def test_stray_answer_belongs_to_another_run(proxy: Proxy) -> None:
    ask(proxy, run="r1")
    ask(proxy, run="r2")
    proxy.arm("node", Fault("stray"))
    assert f"{ORDER_KEY_HEADER}: visits/r1/1".encode() in ask(proxy, run="r2")


def test_request_to_an_absent_node_is_reset(proxy: Proxy) -> None:
    proxy.routes["node"].upstream = lambda: 1
    with pytest.raises(ConnectionResetError):
        ask(proxy)
