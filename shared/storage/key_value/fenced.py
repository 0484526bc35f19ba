"""A store that only its owner writes to: every write is a transaction that fails unless the owner's token is there.

A process that lost its ownership without noticing, since it hung or its network did, can therefore change nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from shared.storage.key_value.server_info import ServerInfo
from shared.storage.key_value.store import Batch, Entry, GuardFailed, Payload, Store, StoreUnavailable

_CHUNK = 1000  # most keys that one transaction deletes


class StandingBy(StoreUnavailable):
    """Another process owns what is stored, so this one writes nothing (503); the message names the owner."""

    code = "standing_by"


class Fence(Protocol):
    """Knows the owner's token."""

    def guard(self) -> tuple[str, bytes]:
        """Returns the key of the token, and the value that it has while this process is the owner.

        Raises:
            StandingBy: this process is not the owner.
        """

    async def found(self, value: bytes | None, expected: bytes) -> None:
        """Is told that the token is not the expected one; returns if this process is the owner all the same.

        Raises:
            StandingBy: another process is.
        """


class FencedStore:
    """`Store` whose writes are guarded by a fence; it reads like the store below.

    Every write also raises `StandingBy`.
    """

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store, self._fence = store, fence

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._store.ping()

    async def server(self) -> ServerInfo:
        """See `Store.server`."""
        return await self._store.server()

    async def get(self, key: str) -> bytes | None:
        """See `Store.get`."""
        return await self._store.get(key)

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """See `Store.put`."""
        await self.commit(Batch().put(key, value, ttl_s))

    async def delete(self, *keys: str) -> int:
        """See `Store.delete`."""
        present = {found for key in keys for found in await self._store.keys(key)} & set(keys)
        return await self._delete(sorted(present))

    async def scan(self, prefix: str) -> dict[str, bytes]:
        """See `Store.scan`."""
        return await self._store.scan(prefix)

    async def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`."""
        return await self._store.keys(prefix)

    async def last_id(self, stream: str) -> str:
        """See `Store.last_id`."""
        return await self._store.last_id(stream)

    async def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        return await self._delete(await self._store.keys(prefix))

    async def _delete(self, keys: list[str]) -> int:
        for first in range(0, len(keys), _CHUNK):
            await self.commit(Batch().delete(*keys[first : first + _CHUNK]))
        return len(keys)

    async def append(self, stream: str, payload: Payload) -> str:
        """See `Store.append`."""
        return (await self.commit(Batch().append(stream, payload)))[0]

    async def read(
        self, stream: str, after: str = "0", limit: int | None = None, block_s: float | None = None
    ) -> list[Entry]:
        """See `Store.read`."""
        return await self._store.read(stream, after, limit, block_s)

    async def commit(self, batch: Batch) -> list[str]:
        """See `Store.commit`."""
        while True:
            key, token = self._fence.guard()
            try:
                return await self._store.commit(replace(batch, guards={key: token, **batch.guards}))
            except GuardFailed as error:
                if error.key != key:
                    raise
                await self._fence.found(error.found, token)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._store.close()
