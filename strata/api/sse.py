"""Server-sent events, as far as the cloud uses them (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass
class Message:
    """One message of a stream: its id, name and data (several `data` lines joined by line breaks)."""

    id: str = ""
    event: str = "message"
    data: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The data lines, joined by line breaks."""
        return "\n".join(self.data)


def messages(lines: Iterable[str]) -> Iterator[Message | None]:
    """The messages in the lines of a stream; None for a comment, which a server sends to show that it is alive.

    An incomplete message at the end of the stream is dropped: the server sends it again after `Last-Event-ID`.
    """
    message = Message()
    for line in lines:
        if line == "":
            if message.data:
                yield message
            message = Message()
        elif line.startswith(":"):
            yield None
        else:
            name, _, value = line.partition(":")
            _set(message, name, value.removeprefix(" "))


def _set(message: Message, name: str, value: str) -> None:
    if name == "data":
        message.data.append(value)
    elif name == "event":
        message.event = value
    elif name == "id":
        message.id = value
