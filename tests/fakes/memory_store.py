"""A `Store` in this process."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from shared.storage.key_value.server_info import ServerInfo
from shared.storage.key_value.store import (
    Batch,
    Entry,
    GuardFailed,
    KeyGone,
    Payload,
    Put,
    WrongKind,
    check_ttl,
    encode_payload,
    parse_entry_id,
)


class _Value(NamedTuple):
    data: bytes
    expires_at: float | None


class _Stored(NamedTuple):
    entry_id: tuple[int, int]
    data: bytes


def _entry(stored: _Stored) -> Entry:
    return Entry(f"{stored.entry_id[0]}-{stored.entry_id[1]}", stored.data)


class MemoryStore:
    """Keys and streams in dictionaries, with the behaviour of `RedisStore`.

    Args:
        clock: monotonic seconds; decides expiry.
        wall: wall-clock seconds; the first half of entry ids, which also grow when the clock jumps back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._values: dict[str, _Value] = {}
        self._streams: dict[str, list[_Stored]] = {}
        self.info = ServerInfo(process="one", policy="noeviction")
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    async def ping(self) -> None:
        """See `Store.ping`."""

    async def server(self) -> ServerInfo:
        """See `Store.server`."""
        return self.info

    async def get(self, key: str) -> bytes | None:
        """See `Store.get`."""
        return self._get(key)

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """See `Store.put`."""
        check_ttl(ttl_s)
        self._put(Put(key, value, ttl_s))

    async def delete(self, *keys: str) -> int:
        """See `Store.delete`."""
        return sum(self._delete(key) for key in dict.fromkeys(keys))

    async def scan(self, prefix: str) -> dict[str, bytes]:
        """See `Store.scan`."""
        self._expire()
        return {key: self._values[key].data for key in sorted(self._values) if key.startswith(prefix)}

    async def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`."""
        self._expire()
        return sorted(key for key in [*self._values, *self._streams] if key.startswith(prefix))

    async def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        return await self.delete(*await self.keys(prefix))

    async def append(self, stream: str, payload: Payload) -> str:
        """See `Store.append`."""
        data = encode_payload(payload)
        self._check_stream(stream)
        return self._append(stream, data)

    async def last_id(self, stream: str) -> str:
        """See `Store.last_id`."""
        entries = self._after(stream, (0, 0), None)
        return entries[-1].id if entries else "0"

    async def read(
        self, stream: str, after: str = "0", limit: int | None = None, block_s: float | None = None
    ) -> list[Entry]:
        """See `Store.read`."""
        start = parse_entry_id(after)
        found = self._after(stream, start, limit)
        deadline = time.monotonic() + (block_s or 0.0)
        # An append wakes every reader of the stream, also those whose `after` lies beyond the new entry.
        while not found and (left := deadline - time.monotonic()) > 0:
            await self._wait(stream, left)
            found = self._after(stream, start, limit)
        return found

    async def commit(self, batch: Batch) -> list[str]:
        """See `Store.commit`."""
        for key, expected in batch.guards.items():
            found = self._get(key)
            if found != expected:
                raise GuardFailed(key, found)
        for key in batch.needed:
            self._expire(key)
            if key not in self._values and key not in self._streams:
                raise KeyGone(key)
        for append in batch.appends:
            self._check_stream(append.stream)
        for key in batch.deletes:
            self._delete(key)
        for put in batch.puts:
            self._put(put)
        return [self._append(*append) for append in batch.appends]

    async def close(self) -> None:
        """See `Store.close`."""

    def n_blocked(self) -> int:
        """Returns the number of readers that wait for an entry."""
        return sum(map(len, self._waiting.values()))

    def _get(self, key: str) -> bytes | None:
        if key in self._streams:
            raise WrongKind(key)
        self._expire(key)
        value = self._values.get(key)
        return None if value is None else value.data

    def _put(self, put: Put) -> None:
        self._streams.pop(put.key, None)  # as SET does, which replaces what is there of whatever kind
        expires_at = None if put.ttl_s is None else self._clock() + put.ttl_s
        self._values[put.key] = _Value(bytes(put.value), expires_at)

    def _delete(self, key: str) -> int:
        self._expire(key)
        was_value = self._values.pop(key, None) is not None
        was_stream = self._streams.pop(key, None) is not None
        return int(was_value or was_stream)

    def _expire(self, *keys: str) -> None:
        now = self._clock()
        for key in keys or list(self._values):
            value = self._values.get(key)
            if value is not None and value.expires_at is not None and value.expires_at <= now:
                del self._values[key]

    def _check_stream(self, key: str) -> None:
        self._expire(key)
        if key in self._values:
            raise WrongKind(key)

    def _append(self, stream: str, data: bytes) -> str:
        entries = self._streams.setdefault(stream, [])
        entry_id = (int(self._wall() * 1000), 0)
        if entries and entry_id <= entries[-1].entry_id:
            milliseconds, sequence = entries[-1].entry_id
            entry_id = (milliseconds, sequence + 1)
        entries.append(_Stored(entry_id, data))
        for future in self._waiting.pop(stream, ()):
            if not future.done():
                future.set_result(None)
        return _entry(entries[-1]).id

    def _after(self, stream: str, start: tuple[int, int], limit: int | None) -> list[Entry]:
        self._check_stream(stream)
        entries = self._streams.get(stream, [])
        first = bisect_right(entries, start, key=lambda stored: stored.entry_id)
        return [_entry(stored) for stored in entries[first : None if limit is None else first + limit]]

    async def _wait(self, stream: str, timeout_s: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(stream, set()).add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            waiting = self._waiting.get(stream, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(stream, None)
