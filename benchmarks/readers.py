"""`python -m benchmarks.readers PORT PATH N`: N clients that read server-sent events and throw them away.

Prints `ready` once all are answered, reads until its input ends, and then prints the fewest bytes that one of them got.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from typing import cast

import uvloop


class Reader(asyncio.Protocol):
    """One client; it counts bytes."""

    def __init__(self, head: bytes, answered: asyncio.Queue[bool]) -> None:
        self.head, self.answered, self.n_bytes = head, answered, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the request."""
        cast(asyncio.WriteTransport, transport).write(self.head)

    def data_received(self, data: bytes) -> None:
        """Counts what arrives; the first piece is the head of the answer."""
        if not self.n_bytes:
            self.answered.put_nowait(data.startswith(b"HTTP/1.1 200 "))
        self.n_bytes += len(data)


async def read(port: int, path: str, n: int) -> None:
    """Connect all clients and read until the input ends."""
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nlast-event-id: {int(1000 * time.time())}\r\n\r\n".encode()
    loop, answered = asyncio.get_running_loop(), asyncio.Queue[bool]()
    readers = [Reader(head, answered) for _ in range(n)]
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]
    if not all([await answered.get() for _ in readers]):
        raise SystemExit("a client was refused")
    print("ready", flush=True)
    before = [reader.n_bytes for reader in readers]
    await asyncio.to_thread(sys.stdin.read)
    print(min(reader.n_bytes - begun for reader, begun in zip(readers, before, strict=True)), flush=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(read(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
