"""Clients that write raw bytes to a socket, and a server for them in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import FastAPI

from shared.identity.node_keys import NodeKeys
from shared.service import server
from shared.service.settings import TierSettings
from tests.waits import until

WAIT_S = 30.0
"""Seconds within which a connection is answered or closed."""


class Client:
    """One connection."""

    def __init__(self, port: int, first: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.send(first)

    def send(self, data: bytes) -> bool:
        """Whether the connection still takes data."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def rest(self) -> bytes:
        """Returns the data until the other side closes.

        Raises:
            TimeoutError: the other side does not close.
        """
        got = b""
        with suppress(ConnectionResetError):
            while chunk := self.socket.recv(2**16):
                got += chunk
        return got

    def receives(self, what: bytes) -> bool:
        """Whether this data arrives before the other side closes."""
        got = b""
        while what not in got:
            chunk = self.socket.recv(2**16)
            if not chunk:
                return False
            got += chunk
        return True

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Returns status and JSON of the only answer before the other side closes."""
        head, _, body = self.rest().partition(b"\r\n\r\n")
        assert b"application/problem+json" in head, head
        return int(head.split()[1]), json.loads(body)

    def drip(self, data: bytes, every_s: float) -> bool:
        """Sends byte by byte; returns False once the other side has closed."""
        self.socket.settimeout(every_s)
        try:
            for n in range(len(data)):
                if not self.send(data[n : n + 1]):
                    return False
                with suppress(TimeoutError):
                    if not self.socket.recv(2**16):
                        return False
        except OSError:
            return False
        finally:
            self.socket.settimeout(WAIT_S)
        return True

    def close(self) -> None:
        self.socket.close()


@contextmanager
def running(app: FastAPI, keys: NodeKeys | None = None, **settings: Any) -> Iterator[tuple[int, server.Server]]:
    """Runs a server with these settings in a thread, over TLS if it has keys; yields its port and itself."""
    found = TierSettings(**settings)
    bound = server.listen(found)
    it = server.Server(server.configure(app, found, keys=keys), app)
    thread = threading.Thread(target=it.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        until("the start of the server", lambda: it.started)
        yield found.port, it
    finally:
        it.should_exit = True
        thread.join(WAIT_S)
    assert not thread.is_alive()
