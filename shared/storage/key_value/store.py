"""The interface of a key-value store: values, streams, and transactions with compare-and-set guards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from shared.core.errors import Conflict, StrataError
from shared.storage.key_value.server_info import ServerInfo

Payload = bytes | Mapping[str, Any]
"""An entry to append to a stream: bytes as they are, or fields that become one JSON object."""

_ENTRY_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)
_U64 = 2**64


class StoreUnavailable(StrataError):
    """The store did not answer, or lacks memory, disk or time (503); the message says which.

    Whether a write that failed so was carried out is unknown. Guard the batch and repeat it: a `GuardFailed` whose
    `found` is the value that the batch puts means that it was.
    """

    status, code = 503, "store_unavailable"


class GuardFailed(Conflict):
    """A key did not hold the value that the batch expects; nothing of the batch was carried out (409)."""

    code = "guard_failed"

    def __init__(self, key: str, found: bytes | None) -> None:
        super().__init__(f"{key} {'is absent' if found is None else 'holds another value'}", field=key)
        self.key = key
        self.found = found


class KeyGone(Conflict):
    """A key that a batch needs is absent; nothing of the batch was carried out (409)."""

    code = "key_gone"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is gone: was Redis emptied in part, or does it remove keys when its memory is full?")
        self.key = key


class WrongKind(StrataError):
    """A stream was used as a value or a value as a stream: a defect of the caller (500)."""

    code = "wrong_kind"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} holds the other kind of value (a stream or bytes)")


class BadEntryId(StrataError):
    """A position in a stream, as a user sends it, is not of the form `milliseconds-sequence` (422)."""

    status, code = 422, "bad_entry_id"


class Entry(NamedTuple):
    """One entry of a stream."""

    id: str
    data: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The fields with which the entry was appended."""
        fields: dict[str, Any] = json.loads(self.data)
        return fields


class Put(NamedTuple):
    """A key, its new value, and its expiry in seconds."""

    key: str
    value: bytes
    ttl_s: float | None


class Append(NamedTuple):
    """A stream, and the encoded entry to append."""

    stream: str
    data: bytes


@dataclass
class Batch:
    """The changes of one transaction, which happen all or not at all. Every method returns the batch itself.

    Keys are deleted first, then put, then appended to, whatever the order of the calls.
    """

    guards: dict[str, bytes | None] = field(default_factory=dict)
    needed: list[str] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)

    def expect(self, key: str, value: bytes | None) -> Self:
        """Lets the batch fail unless `key` holds `value` (None means that it is absent) at that instant."""
        self.guards[key] = value
        return self

    def need(self, *keys: str) -> Self:
        """Lets the batch fail unless these keys are there, whatever their kind and value."""
        self.needed.extend(keys)
        return self

    def put(self, key: str, value: bytes, ttl_s: float | None = None) -> Self:
        """Sets a key; without `ttl_s` it has no expiry, also if it had one before."""
        check_ttl(ttl_s)
        self.puts.append(Put(key, value, ttl_s))
        return self

    def delete(self, *keys: str) -> Self:
        """Deletes keys; absent keys are ignored."""
        self.deletes.extend(keys)
        return self

    def append(self, stream: str, payload: Payload) -> Self:
        """Appends to a stream."""
        self.appends.append(Append(stream, encode_payload(payload)))
        return self


class Store(Protocol):
    """Values by key, and streams; every call ends within the store's timeouts.

    Any method raises `StoreUnavailable`, and `WrongKind` if the key holds the other kind of value.
    """

    async def ping(self) -> None:
        """Returns if the store answers."""

    async def server(self) -> ServerInfo:
        """Returns what the server says of itself; the defaults of what it does not say."""

    async def get(self, key: str) -> bytes | None:
        """Returns the value of a key, None if it is absent or has expired."""

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Sets a key; without `ttl_s` it has no expiry, also if it had one before."""

    async def delete(self, *keys: str) -> int:
        """Deletes keys of either kind and returns their number."""

    async def scan(self, prefix: str) -> dict[str, bytes]:
        """Returns the values of all keys that begin with `prefix`, sorted by key, without streams.

        It is not a snapshot: a value that changes meanwhile may be the old or the new one, or be missing if deleted.
        """

    async def keys(self, prefix: str) -> list[str]:
        """Returns the keys of both kinds that begin with `prefix`, sorted."""

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes the keys of both kinds that begin with `prefix` and returns their number."""

    async def append(self, stream: str, payload: Payload) -> str:
        """Appends to a stream and returns the entry's id, which is larger than all before it."""

    async def last_id(self, stream: str) -> str:
        """Returns the id of a stream's newest entry, `"0"` if it has none."""

    async def read(
        self, stream: str, after: str = "0", limit: int | None = None, block_s: float | None = None
    ) -> list[Entry]:
        """Returns the entries with an id above `after`, oldest first.

        Args:
            stream: key of the stream; an absent one is empty.
            after: id of the last entry already read, `"0"` for the beginning.
            limit: the most entries to return, None for all.
            block_s: seconds to wait for an entry if there is none; None or 0 does not wait.

        Raises:
            BadEntryId: `after` is not an entry id.
        """

    async def commit(self, batch: Batch) -> list[str]:
        """Carries out a batch in one transaction and returns the ids of its appended entries, in order.

        Raises:
            GuardFailed: a key did not hold the expected value; nothing was carried out.
            KeyGone: a needed key is absent; nothing was carried out.
        """

    async def close(self) -> None:
        """Closes the connections."""


async def unavailable(store: Store) -> str | None:
    """Why the store does not answer, None if it does."""
    try:
        await store.ping()
    except StrataError as error:
        return error.detail
    return None


def encode_payload(payload: Payload) -> bytes:
    """Returns the bytes of a stream entry; fields become JSON, in which NaN is an error."""
    if isinstance(payload, bytes):
        return payload
    return json.dumps(dict(payload), allow_nan=False, separators=(",", ":")).encode()


def check_ttl(ttl_s: float | None) -> None:
    """Refuses an expiry in the past.

    Raises:
        ValueError: `ttl_s` is not above zero.
    """
    if ttl_s is not None and not ttl_s > 0:
        raise ValueError(f"ttl_s must be above zero, not {ttl_s}")


def parse_entry_id(text: str) -> tuple[int, int]:
    """Returns an entry id as (milliseconds, sequence), which sort as the ids do; `"5"` is `"5-0"`.

    Raises:
        BadEntryId: `text` is not an entry id.
    """
    match = _ENTRY_ID.fullmatch(text)
    parts = (int(match[1]), int(match[2] or 0)) if match else (_U64, 0)
    if max(parts) >= _U64:
        raise BadEntryId(f"no entry id: {text[:60]!r}")
    return parts
