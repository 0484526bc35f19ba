"""Clients as bytes on a socket, and a server in a thread for them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import FastAPI

from shared.service import server
from shared.service.settings import TierSettings

PATIENT_S = 30.0
"""How long a test waits for what must happen; nothing is compared with it."""


class Client:
    """One connection."""

    def __init__(self, port: int, first: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S)
        self.send(first)

    def send(self, data: bytes) -> bool:
        """Whether the other side still takes something."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def rest(self) -> bytes:
        """What comes until the other side closes.

        Raises:
            TimeoutError: it does not.
        """
        got = b""
        with suppress(ConnectionResetError):
            while chunk := self.socket.recv(2**16):
                got += chunk
        return got

    def hears(self, what: bytes) -> bool:
        """Whether this comes before the other side closes."""
        got = b""
        while what not in got:
            chunk = self.socket.recv(2**16)
            if not chunk:
                return False
            got += chunk
        return True

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the one answer before the other side closes."""
        head, _, body = self.rest().partition(b"\r\n\r\n")
        assert b"application/problem+json" in head, head
        return int(head.split()[1]), json.loads(body)

    def drip(self, data: bytes, every_s: float) -> bool:
        """Send byte by byte; False once the other side has closed."""
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
            self.socket.settimeout(PATIENT_S)
        return True

    def close(self) -> None:
        self.socket.close()


@contextmanager
def running(app: FastAPI, **settings: Any) -> Iterator[tuple[int, server.Server]]:
    """A server with these settings in a thread: its port, and itself."""
    found = TierSettings(**settings)
    bound = server.listen(found)
    it = server.Server(server.configure(app, found), app)
    thread = threading.Thread(target=it.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        until(lambda: it.started)
        yield found.port, it
    finally:
        it.should_exit = True
        thread.join(PATIENT_S)
    assert not thread.is_alive()


def until(there: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    ends = time.monotonic() + PATIENT_S
    while not there():
        assert time.monotonic() < ends
        time.sleep(0.02)
