"""A store in Redis, with the commands of version 6.2."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError, WatchError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.storage.key_value.address import checked_address, has_user, place_of
from shared.storage.key_value.redis_errors import lost_because, misconfigured, refuses_user
from shared.storage.key_value.server_info import ServerInfo, server_info
from shared.storage.key_value.store import (
    Batch,
    Entry,
    GuardFailed,
    KeyGone,
    Payload,
    StoreUnavailable,
    WrongKind,
    check_ttl,
    encode_payload,
    parse_entry_id,
)

_FIELD = b"d"
_CHUNK = 1000  # most keys of one command, so that none holds up the others for long
_WATCH_TRIES = 8  # commits before a contended batch is given up
_LOST = (RedisConnectionError, RedisTimeoutError, OSError)
# Refusals that may pass: disk or memory full, loading, demoted, a long script.
_TRANSIENT = ("MISCONF", "OOM", "LOADING", "READONLY", "BUSY", "EXECABORT", "TRYAGAIN", "MASTERDOWN")


def _milliseconds(ttl_s: float | None) -> int | None:
    check_ttl(ttl_s)
    return None if ttl_s is None else max(1, math.ceil(ttl_s * 1000))


def pattern_of(prefix: str) -> str:
    """Returns the pattern that all keys with this prefix match, and no others."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"


def _entries(rows: Iterable[Any]) -> list[Entry]:
    return [Entry(entry_id.decode(), fields[_FIELD]) for entry_id, fields in rows]


class StoreUser(NamedTuple):
    """The name and the password with which connections introduce themselves."""

    name: str
    password: str


class Credentials(CredentialProvider):
    """What new connections show. It is asked for each of them, so it may change."""

    def __init__(self, user: Callable[[], StoreUser | None]) -> None:
        self._user = user

    def get_credentials(self) -> Any:
        """The name and the password; nothing where there is no user."""
        return self._user() or ()

    async def get_credentials_async(self) -> Any:
        """The same."""
        return self.get_credentials()


class RedisStore:
    """`Store` on a Redis server.

    A command is sent once, since repeating an append whose answer was lost would append twice. Blocking reads have
    connections of their own, so that many readers of events cannot hold up a commit.

    Args:
        url: `redis://[:password@]host:port/db`, `rediss://...` or `unix:///path?db=0`.
        timeout_s: longest wait for a connection, and for each answer.
        max_connections: connections for commands; further commands wait.
        max_readers: connections for blocking reads; further reads raise `StoreUnavailable`.
        user: as whom each new connection introduces itself, unless the URL says it; None for none.
        clock: monotonic seconds; decides when a blocking read has waited long enough.

    Attributes:
        refuses_user: whether Redis refused the user or its password when it was last asked.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        max_connections: int = 16,
        max_readers: int = 256,
        user: Callable[[], StoreUser | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where, self._tls = place_of(checked_address(url)), url.startswith("rediss:")
        self._timeout_s, self._clock = timeout_s, clock
        shown = {} if has_user(url) else {"credential_provider": Credentials(user)}
        self._redis = _client(url, timeout_s, max_connections, **shown)
        self._readers = _client(url, timeout_s, max_readers, **shown)
        self.refuses_user = self._answered = False

    async def ping(self) -> None:
        """See `Store.ping`."""
        with self._named_errors():
            await self._redis.ping()

    async def server(self) -> ServerInfo:
        """See `Store.server`."""
        with self._named_errors():
            try:
                return server_info(await self._redis.info())
            except ResponseError as error:  # a service may forbid to ask
                if misconfigured(error):
                    raise
                return ServerInfo()

    async def get(self, key: str) -> bytes | None:
        """See `Store.get`."""
        with self._named_errors(key):
            return cast(bytes | None, await self._redis.get(key))

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """See `Store.put`."""
        with self._named_errors(key):
            await self._redis.set(key, value, px=_milliseconds(ttl_s))

    async def delete(self, *keys: str) -> int:
        """See `Store.delete`."""
        with self._named_errors():
            return int(await self._redis.unlink(*keys)) if keys else 0

    async def scan(self, prefix: str) -> dict[str, bytes]:
        """See `Store.scan`."""
        found: dict[str, bytes] = {}
        with self._named_errors():
            async for keys in self._pages(prefix, kind="string"):
                values = cast(list[bytes | None], await self._redis.mget(keys))
                found |= {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        return dict(sorted(found.items()))

    async def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`."""
        with self._named_errors():
            return sorted({key async for keys in self._pages(prefix) for key in keys})

    async def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        keys = await self.keys(prefix)
        return sum([await self.delete(*keys[i : i + _CHUNK]) for i in range(0, len(keys), _CHUNK)])

    async def append(self, stream: str, payload: Payload) -> str:
        """See `Store.append`."""
        data = encode_payload(payload)
        with self._named_errors(stream):
            return cast(bytes, await self._redis.xadd(stream, {_FIELD: data})).decode()

    async def last_id(self, stream: str) -> str:
        """See `Store.last_id`."""
        with self._named_errors(stream):
            newest = await self._redis.xrevrange(stream, count=1)
        return cast(bytes, newest[0][0]).decode() if newest else "0"

    async def read(
        self, stream: str, after: str = "0", limit: int | None = None, block_s: float | None = None
    ) -> list[Entry]:
        """See `Store.read`."""
        parse_entry_id(after)
        if limit == 0:  # COUNT 0 would mean all
            return []
        deadline = self._clock() + (block_s or 0.0)
        while True:
            # Each read is shorter than the socket's timeout, which thus means a server that hangs, not a quiet stream.
            left = min(deadline - self._clock(), self._timeout_s / 2)
            block_ms = math.ceil(left * 1000) if left > 0 else None
            client = self._redis if block_ms is None else self._readers
            with self._named_errors(stream):
                answer: Any = await client.xread({stream: after}, count=limit, block=block_ms)
            if answer or block_ms is None:
                return _entries(answer[0][1]) if answer else []

    async def commit(self, batch: Batch) -> list[str]:
        """See `Store.commit`."""
        for _ in range(_WATCH_TRIES):
            with self._named_errors():
                async with self._redis.pipeline(transaction=True) as pipe:
                    await self._check_guards(pipe, batch)
                    _queue(pipe, batch)
                    try:
                        results = await pipe.execute()
                    except WatchError as error:
                        if isinstance(error.__context__, _LOST):  # the client wraps a lost connection so
                            raise error.__context__ from error
                        continue  # a guarded key was written meanwhile, perhaps with the same value
            return [entry_id.decode() for entry_id in results[len(results) - len(batch.appends) :]]
        raise StoreUnavailable(f"{', '.join(batch.guards)} changed {_WATCH_TRIES} times during a commit")

    async def close(self) -> None:
        """See `Store.close`."""
        await self._redis.aclose()
        await self._readers.aclose()

    async def _check_guards(self, pipe: Pipeline, batch: Batch) -> None:
        if batch.guards or batch.needed:
            await pipe.watch(*(batch.guards or batch.needed))
        for key, expected in batch.guards.items():
            with self._named_errors(key):
                found = cast(bytes | None, await cast(Awaitable[Any], pipe.get(key)))
            if found != expected:
                raise GuardFailed(key, found)
        for key in batch.needed:
            if not await pipe.exists(key):
                raise KeyGone(key)
        pipe.multi()  # type: ignore[no-untyped-call]

    async def _pages(self, prefix: str, kind: str | None = None) -> AsyncIterator[list[str]]:
        cursor, first = 0, True
        while first or cursor:
            cursor, keys = await self._redis.scan(cursor, match=pattern_of(prefix), count=_CHUNK, _type=kind)
            first = False
            if keys:
                yield [cast(bytes, key).decode() for key in keys]

    @contextmanager
    def _named_errors(self, key: str = "") -> Iterator[None]:
        """Turns errors of the client into `StoreUnavailable` and `WrongKind`."""
        try:
            yield
            self.refuses_user, self._answered = False, True
        except _LOST as error:
            self.refuses_user = refuses_user(error)
            why = misconfigured(error) or lost_because(error, tls=self._tls, answered=self._answered)
            raise StoreUnavailable(f"Redis at {self._where} {why}") from error
        except ResponseError as error:
            if (never := misconfigured(error)) is not None:
                raise StoreUnavailable(f"Redis at {self._where} {never}") from error
            # In a transaction the message quotes the command, with its values, before the reason.
            text = str(error).rpartition("caused error: ")[2].strip("()',\"")
            if text.startswith("WRONGTYPE"):
                raise WrongKind(key or "a key of the batch") from error
            if text.startswith(_TRANSIENT) or type(error) is not ResponseError:
                raise StoreUnavailable(f"Redis at {self._where} refuses: {text}") from error
            raise
        except RedisError as error:
            raise StoreUnavailable(f"Redis at {self._where}: {error}") from error


class _Cancellable(AbstractConnection):
    """A connection on which each cancelled command ends.

    The client sends by `asyncio.wait_for`, which up to Python 3.11 returns as if nothing had happened where a task is
    cancelled in the moment in which its wait is over (https://github.com/python/cpython/issues/86296): a blocking read
    would then go on for as long as it may, and a task that reads again and again for ever.
    """

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command; a connection on which one was sent in vain is closed."""
        task = cast(asyncio.Task[Any], asyncio.current_task())
        n_before = task.cancelling()
        await super().send_packed_command(command, check_health)
        if task.cancelling() > n_before:
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError


def _client(url: str, timeout_s: float, max_connections: int, **options: Any) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,  # for a free connection
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **options,
    )
    pool.connection_class = type("Connection", (_Cancellable, pool.connection_class), {})
    return Redis.from_pool(pool)


def _queue(pipe: Pipeline, batch: Batch) -> None:
    """Queues the commands of a batch, the appends last: their ids are the end of the answer."""
    if batch.deletes:
        pipe.unlink(*batch.deletes)
    for put in batch.puts:
        pipe.set(put.key, put.value, px=_milliseconds(put.ttl_s))
    for append in batch.appends:
        pipe.xadd(append.stream, {_FIELD: append.data})
