"""The part of HTTP/1.1 that a proxy needs: where a message's head ends, and where its body ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

NO_BODY = (b"1", b"204", b"304")


class Broken(Exception):
    """The other side closed the connection, or sent something other than the messages of these tiers."""


@dataclass(frozen=True)
class Message:
    """A request or a response: its head including the empty line, and its body."""

    head: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        """The message as bytes."""
        return self.head + self.body

    @property
    def start(self) -> list[bytes]:
        """The words of the first line: method, path, version; or version, status, reason."""
        return self.head.split(b"\r\n", 1)[0].split(b" ", 2)

    @property
    def path(self) -> str:
        """The path of a request."""
        return self.start[1].decode()

    def header(self, name: str) -> str:
        """A header's value, empty if it is absent."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.encode():
                return value.strip().decode()
        return ""


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """Returns the next message of a connection, None at its end.

    Raises:
        Broken: the connection ends within a message, or the message has an unknown form.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        message = Message(head, b"")
        if message.header("transfer-encoding"):
            raise Broken("a chunked body")
        status = message.start[1] if message.start[0].startswith(b"HTTP/") else b""
        if status.startswith(NO_BODY):
            return message
        return Message(head, await reader.readexactly(int(message.header("content-length") or 0)))
    except asyncio.IncompleteReadError as error:
        if not error.partial and error.expected is None:
            return None
        raise Broken("it ends in the middle") from None
    except (OSError, ValueError, asyncio.LimitOverrunError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from None
