"""The tokens of users: which user shows a token, as the cloud's Redis has them.

A token is 256 random bits, so its sha256 can be kept without salt or a slow hash: nobody can try all of them. It is
shown once, when it is made.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable

from pydantic import ValidationError

from cloud_server.users.user import User
from shared.core.errors import BadInput, Conflict, NotFound, TooMany
from shared.core.field_errors import told
from shared.run_records.runs import ADMINISTRATOR
from shared.runtime.background import Repeating
from shared.service.api.users import NewToken
from shared.storage import redis_keys
from shared.storage.key_value import Batch, GuardFailed, Store

log = logging.getLogger(__name__)
MAX_USERS = 1000
"""Most users of a cloud."""
LOOK_S = 2.0
"""Seconds between two looks at Redis, where another cloud may have added or removed users."""


class Tokens:
    """Knows which user shows a token. It is asked before the cloud has its Redis, and knows nobody then."""

    def __init__(self) -> None:
        self._by_digest: dict[str, User] = {}

    def user(self, token: str) -> User | None:
        """The user whose token this is, None if it is nobody's."""
        digest = digest_of(token)
        found = self._by_digest.get(digest)
        return found if found and hmac.compare_digest(found.token_sha256, digest) else None

    def name(self, token: str) -> str | None:
        """The name of the user whose token this is."""
        found = self.user(token)
        return found.name if found else None

    def holds(self, user: User) -> bool:
        """Whether the token with which a user came in is still valid."""
        return user.token_sha256 in self._by_digest

    def put(self, users: dict[str, User]) -> None:
        """Know these users, by name, and no others."""
        self._by_digest = {user.token_sha256: user for user in users.values()}


class Users:
    """The users of a cloud, as its Redis has them.

    Args:
        store: Redis.
        tokens: is told who is known.
        has_admin: whether a token of the administrator is set.
        now: the time of day, as it is written.
    """

    def __init__(self, store: Store, tokens: Tokens, has_admin: bool, now: Callable[[], str]) -> None:
        self.store, self.tokens, self.has_admin, self.now = store, tokens, has_admin, now
        self.by_name: dict[str, User] = {}
        self._lock = asyncio.Lock()
        self._looking = Repeating(LOOK_S, self.load, "the tokens of users are not read")

    def start(self) -> None:
        """Begin to read who is known."""
        self._looking.start()

    async def stop(self) -> None:
        """Stop that."""
        await self._looking.stop()

    async def load(self) -> None:
        """Read who is known.

        Raises:
            StoreUnavailable: Redis does not answer; those who were known stay so.
        """
        async with self._lock:
            found = (await self.store.scan(redis_keys.CLOUD_USERS)).values()
            users = {user.name: user for data in found if (user := _user(data))}
            if users and not self.by_name and not self.has_admin:
                log.warning("there are users, and STRATA_API_TOKEN is not set: callers without a token administer")
            self._know(users)

    def _know(self, users: dict[str, User]) -> None:
        self.by_name = users
        self.tokens.put(users)

    async def add(self, new: NewToken) -> tuple[User, str]:
        """Add a user; returns the token too, which is kept nowhere.

        Raises:
            BadInput: the name is the administrator's.
            Conflict: there is a user of that name, or no token of the administrator is set.
            TooMany: there are `MAX_USERS`.
        """
        if new.name.lower() == ADMINISTRATOR:
            raise BadInput(f"name: {new.name!r} is the administrator's", field="name")
        if not self.has_admin:
            raise Conflict("set STRATA_API_TOKEN for the administrator first: without it every caller is one")
        token = f"strata_{secrets.token_urlsafe(32)}"
        user = User(**new.model_dump(), token_sha256=digest_of(token), created_at=self.now())
        async with self._lock:
            if len(self.by_name) >= MAX_USERS:
                raise TooMany(f"there are {MAX_USERS} users, which is the limit")
            key = redis_keys.cloud_user(user.name)
            try:
                await self.store.commit(Batch().expect(key, None).put(key, user.model_dump_json().encode()))
            except GuardFailed:
                raise Conflict(f"there is a user {user.name!r}: remove that token first", field="name") from None
            self._know({**self.by_name, user.name: user})
        return user, token

    async def remove(self, name: str) -> None:
        """Make a user's token void, at once here, within seconds at clouds that stand by. Runs stay.

        Raises:
            NotFound: there is no such user.
        """
        async with self._lock:
            key = redis_keys.cloud_user(name)
            if await self.store.get(key) is None:
                raise NotFound(f"no user {name!r}: `strata token list` lists them")
            await self.store.commit(Batch().delete(key))
            self._know({known: user for known, user in self.by_name.items() if known != name})


def digest_of(token: str) -> str:
    """The sha256 of a token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _user(data: bytes) -> User | None:
    """A stored user; None, with a line in the log, where another version wrote what this one cannot read."""
    try:
        return User.model_validate_json(data)
    except ValidationError as error:
        log.warning("a user in Redis cannot be read, whose token is refused: %s", told(error))
        return None
