"""What a store promises, whatever it is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from shared.core.errors import Conflict, StrataError


async def answers(store: Store) -> bool:
    """Whether the store answers."""
    try:
        await store.ping()
    except StrataError:
        return False
    return True


Payload = bytes | Mapping[str, Any]
"""What can be appended to a stream: bytes as they are, or fields that become one JSON object."""

_ENTRY_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)
_U64 = 2**64


class StoreUnavailable(StrataError):
    """The store did not answer, or refused for want of memory, disk or time; the message says which.

    Whether a write that ended so was carried out is unknown. Guard the batch and repeat it: a `GuardFailed`
    whose `found` is the value that the batch itself wanted to put means that it had been carried out.
    """

    status, code = 503, "store_unavailable"


class GuardFailed(Conflict):
    """A key did not hold what the batch expected; nothing of the batch was carried out."""

    code = "guard_failed"

    def __init__(self, key: str, found: bytes | None) -> None:
        super().__init__(f"{key} {'is absent' if found is None else 'holds another value'}", field=key)
        self.key = key
        self.found = found


class WrongKind(StrataError):
    """A stream was used as a value or a value as a stream: a defect of the caller."""

    code = "wrong_kind"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} holds the other kind of value (a stream or bytes)")


class BadEntryId(StrataError):
    """A position in a stream is not of the form `milliseconds-sequence` (it may come from a stranger)."""

    status, code = 422, "bad_entry_id"


class Entry(NamedTuple):
    """One entry of a stream."""

    id: str
    data: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The entry as the fields it was appended with."""
        fields: dict[str, Any] = json.loads(self.data)
        return fields


class Put(NamedTuple):
    """A key, its new value and for how long."""

    key: str
    value: bytes
    ttl_s: float | None


class Append(NamedTuple):
    """A stream and the encoded entry to add to it."""

    stream: str
    data: bytes


@dataclass
class Batch:
    """What one transaction does: all of it or nothing. Every method returns the batch itself.

    Deletions happen first, then puts, then appends, whatever the order of the calls.
    """

    guards: dict[str, bytes | None] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)

    def expect(self, key: str, value: bytes | None) -> Self:
        """Make the batch depend on `key` holding exactly `value` (None: being absent) at that instant."""
        self.guards[key] = value
        return self

    def put(self, key: str, value: bytes, ttl_s: float | None = None) -> Self:
        """Set a key; without `ttl_s` it stays, also if it had an expiry before."""
        check_ttl(ttl_s)
        self.puts.append(Put(key, value, ttl_s))
        return self

    def delete(self, *keys: str) -> Self:
        """Delete keys; absent ones are no error."""
        self.deletes.extend(keys)
        return self

    def append(self, stream: str, payload: Payload) -> Self:
        """Append to a stream."""
        self.appends.append(Append(stream, encode_payload(payload)))
        return self


class Store(Protocol):
    """Keys with bytes, and streams; every call ends within the store's own timeouts.

    Raises (any method): `StoreUnavailable`; `WrongKind` where the key holds the other kind of value.
    """

    async def ping(self) -> None:
        """Return if the store answers."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it is absent or has expired."""

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Set a key; without `ttl_s` it stays, also if it had an expiry before."""

    async def delete(self, *keys: str) -> int:
        """Delete keys of either kind and return how many there were."""

    async def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the values of all keys that begin with `prefix`, sorted by key, without the streams.

        No snapshot: what changes during the scan may be seen old, new, or, if it went, not at all.
        """

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys of both kinds that begin with `prefix`, sorted."""

    async def delete_prefix(self, prefix: str) -> int:
        """Delete the keys of both kinds that begin with `prefix` and return how many there were."""

    async def append(self, stream: str, payload: Payload) -> str:
        """Append to a stream and return the entry's id, larger than all before it in this stream."""

    async def read(
        self, stream: str, after: str = "0", limit: int | None = None, block_s: float | None = None
    ) -> list[Entry]:
        """Return the entries with an id above `after`, oldest first, at most `limit`.

        Args:
            stream: Key of the stream; an absent one is empty.
            after: Id of the last entry already known, `"0"` for the start.
            limit: At most so many entries, None for all.
            block_s: Wait so long for an entry if there is none; None or 0 does not wait.

        Raises:
            BadEntryId: `after` is no id.
        """

    async def commit(self, batch: Batch) -> list[str]:
        """Carry out a batch in one transaction and return the ids of its appended entries, in order.

        Raises:
            GuardFailed: A key did not hold what was expected; nothing was carried out.
        """

    async def close(self) -> None:
        """Let go of connections."""


def encode_payload(payload: Payload) -> bytes:
    """Return the bytes of a stream entry; fields become JSON, in which NaN is an error, not `null`."""
    if isinstance(payload, bytes):
        return payload
    return json.dumps(dict(payload), allow_nan=False, separators=(",", ":")).encode()


def check_ttl(ttl_s: float | None) -> None:
    """Refuse an expiry that lies in the past.

    Raises:
        ValueError: `ttl_s` is not above zero.
    """
    if ttl_s is not None and not ttl_s > 0:
        raise ValueError(f"ttl_s must be above zero, not {ttl_s}")


def parse_entry_id(text: str) -> tuple[int, int]:
    """Return an entry id as (milliseconds, sequence), which compare as the ids do; `"5"` is `"5-0"`.

    Raises:
        BadEntryId: `text` is no such id.
    """
    match = _ENTRY_ID.fullmatch(text)
    parts = (int(match[1]), int(match[2] or 0)) if match else (_U64, 0)
    if max(parts) >= _U64:
        raise BadEntryId(f"no entry id: {text[:60]!r}")
    return parts
