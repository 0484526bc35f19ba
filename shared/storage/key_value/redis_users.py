"""Users of a Redis server: each one reaches the keys of its own prefix and has the commands of `RedisStore`, no others.

The names of keys are no secret between users: `SCAN`, by which a store lists its own, sees those of all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError

from shared.storage.key_value.redis import Credentials, StoreUser, pattern_of
from shared.storage.key_value.redis_errors import refuses_user
from shared.storage.key_value.store import StoreUnavailable

COMMANDS: tuple[str, ...] = ("get", "set", "mget", "unlink", "scan", "xadd", "xread", "xrevrange")
COMMANDS += ("exists", "watch", "unwatch", "multi", "exec", "discard", "ping", "select")
"""What `RedisStore` sends."""
ADMINISTERS = ("acl|setuser", "acl|deluser", "acl|save", "info")
TIMEOUT_S = 5.0


class RedisUsers:
    """Makes and removes the users of a Redis server, as one of them.

    Args:
        url: of the server, without a user.
        me: the user as whom this is done; `take_over` makes it.
        prefix: of the keys that it reaches.
    """

    def __init__(self, url: str, me: StoreUser, prefix: str) -> None:
        self.url, self.me, self.prefix = url, me, prefix

    async def take_over(self) -> None:
        """Make the own user, and leave nothing but PING to those who show no password.

        The server must have a file for its users (`--aclfile`), so that it knows them after a restart.

        Raises:
            StoreUnavailable: it does not answer, has no such file, or obeys another one's password.
        """
        known = await self._knows_me()
        async with self._as(self.me if known else None) as redis:
            try:
                await redis.acl_save()
            except NoPermissionError:
                raise StoreUnavailable(f"Redis obeys another installation than that of {self.me.name} here") from None
            await _set(redis, self.me, self.prefix, (*COMMANDS, *ADMINISTERS))
            await redis.acl_setuser("default", enabled=True, nopass=True, commands=["+ping"], reset=True)
            if not known:  # what this connection may do has just shrunk to PING
                await redis.auth(self.me.password, self.me.name)
            await redis.acl_save()

    async def put(self, user: StoreUser, prefix: str) -> None:
        """Make a user, or change what it may do.

        Raises:
            StoreUnavailable: Redis does not answer, or refuses.
        """
        async with self._as(self.me) as redis:
            await _set(redis, user, prefix, COMMANDS)
            await redis.acl_save()

    async def remove(self, name: str) -> None:
        """Remove a user and close its connections; does nothing if there is none.

        Raises:
            StoreUnavailable: Redis does not answer, or refuses.
        """
        async with self._as(self.me) as redis:
            await redis.acl_deluser(name)
            await redis.acl_save()

    async def _knows_me(self) -> bool:
        async with self._as(self.me) as redis:
            try:
                await redis.ping()
            except RedisConnectionError as error:
                if refuses_user(error):
                    return False
                raise
            return True

    @asynccontextmanager
    async def _as(self, user: StoreUser | None) -> AsyncIterator[Redis]:
        """One connection, as this user; its errors become `StoreUnavailable`."""
        redis = Redis.from_url(
            self.url,
            credential_provider=Credentials(lambda: user),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            single_connection_client=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        try:
            yield redis
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the users of Redis: {error}") from error
        finally:
            await redis.aclose()


async def _set(redis: Redis, user: StoreUser, prefix: str, commands: tuple[str, ...]) -> None:
    await redis.acl_setuser(
        user.name,
        enabled=True,
        passwords=[f"+{user.password}"],
        keys=[pattern_of(prefix)],
        commands=[f"+{command}" for command in commands],
        reset=True,
    )
