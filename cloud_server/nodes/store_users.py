"""Who may read and write what in Redis, where nodes show certificates: the cloud its own keys, each edge its own."""

from __future__ import annotations

import hmac
from contextlib import suppress
from pathlib import Path

from shared.identity.names import Identity
from shared.runtime.background import Repeating
from shared.storage import redis_keys
from shared.storage.kept_id import kept_secret
from shared.storage.key_value import RedisStore, RedisUsers, StoreUnavailable, StoreUser

LOOK_S = 1.0
"""Seconds between two looks whether Redis knows the cloud."""


class StoreUsers:
    """The users of a Redis server that obeys this cloud.

    The password of an edge follows from the cloud's secret and the edge's key: nothing of it is stored, an edge that
    asks again gets the same, and another key gets another.

    Args:
        url: of Redis, without a user.
        state_dir: of the cloud; its secret is drawn there.
    """

    def __init__(self, url: str, state_dir: Path) -> None:
        self._secret = kept_secret(state_dir / "identity" / "store-secret").encode()
        me = StoreUser("cloud", self._password("cloud"))
        self.redis = RedisUsers(url, me, redis_keys.CLOUD)
        self.store = RedisStore(url, user=lambda: me)
        self._taken = False
        self._looking = Repeating(LOOK_S, self.look, "the users of Redis")

    async def start(self) -> None:
        """Make Redis obey, at once if it answers."""
        with suppress(StoreUnavailable):  # the first turn says so
            await self.look()
        self._looking.start()

    async def stop(self) -> None:
        """End the looks."""
        await self._looking.stop()

    async def look(self) -> None:
        """Make Redis obey, unless it does; one that was replaced by an empty one does not.

        Raises:
            StoreUnavailable: it does not answer, or refuses.
        """
        if self.store.refuses_user or not self._taken:
            await self.redis.take_over()
            self._taken, self.store.refuses_user = True, False

    async def let_in(self, node: Identity, key_sha256: str) -> str:
        """Returns the password with which a node reaches its own keys in Redis; only edges have one.

        Raises:
            StoreUnavailable: Redis does not answer, or refuses.
        """
        if node.node_class != "edge":
            return ""
        user = StoreUser(redis_keys.user_of_edge(node.name), self._password(f"{node.uri} {key_sha256}"))
        await self.redis.put(user, redis_keys.edge_prefix(node.name))
        return user.password

    async def shut_out(self, node: Identity) -> None:
        """End a node's connections to Redis, and take no others of it.

        Raises:
            StoreUnavailable: Redis does not answer, or refuses.
        """
        if node.node_class == "edge":
            await self.redis.remove(redis_keys.user_of_edge(node.name))

    def _password(self, whose: str) -> str:
        return hmac.digest(self._secret, whose.encode(), "sha256").hex()
