"""Reads server-sent events of an ASGI application as they arrive; httpx2's transport waits for the answer's end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI


class Stream:
    """The answer to one GET request while it arrives."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.status = 0
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            await self._queue.put(message.get("body", b""))
            if not message.get("more_body"):
                await self._queue.put(None)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the events until the answer ends."""
        text = b""
        while (chunk := await self._queue.get()) is not None:
            text += chunk
            while b"\n\n" in text:
                block, text = text.split(b"\n\n", 1)
                if block and not block.startswith(b":"):
                    fields = dict(line.split(": ", 1) for line in block.decode().splitlines())
                    yield {"id": fields["id"], "event": fields["event"], **json.loads(fields["data"])}


@asynccontextmanager
async def opened(app: FastAPI, path: str, headers: dict[str, str] | None = None) -> AsyncIterator[Stream]:
    """Request a path; the client disconnects at the end of the block."""
    stream = Stream()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    task = asyncio.create_task(app(scope, stream.receive, stream.send))
    try:
        yield stream
    finally:
        stream.gone.set()
        async with asyncio.timeout(15):
            await task
