"""One cloud at a time owns what is stored in Redis; others stand by until its lease lapses.

The owner's token is guarded in every transaction (`FencedStore`), so a cloud that has lost its ownership writes nothing
even before it notices. A restarted cloud of the same installation takes over at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import ValidationError

from shared.core.errors import StrataError
from shared.core.records import Record
from shared.runtime.background import Repeating
from shared.storage.key_value import Batch, GuardFailed, StandingBy, Store, StoreUnavailable
from shared.storage.redis_keys import CLOUD_LEASE, CLOUD_OWNER

log = logging.getLogger(__name__)
T = TypeVar("T")
EVERY_S = 1.0
"""Longest pause between two renewals of the lease, or two looks at that of another cloud; at most a fifth of it."""


class Owner(Record):
    """The cloud process that owns the cloud's keys.

    Attributes:
        installation: the id in its state folder.
        process: drawn by each process.
        host: on which it runs.
        token: larger than that of every owner before it.
    """

    installation: str
    process: str
    host: str
    token: int


class Ownership:
    """Takes, renews and gives back the ownership of what is stored. It is the fence of the cloud's store.

    Args:
        store: Redis, without a fence.
        installation: the id of this installation.
        lease_s: seconds after which another installation takes over from a silent owner.

    Attributes:
        held: set while this process is the owner.
        refusal: why the store last refused to renew the lease, None if it did not.
    """

    def __init__(self, store: Store, installation: str, lease_s: float) -> None:
        self.store, self.installation, self.lease_s = store, installation, lease_s
        self.held, self._lost = asyncio.Event(), asyncio.Event()
        self.refusal: str | None = None
        self._process, self._host = secrets.token_hex(8), socket.gethostname()
        self._mine: Owner | None = None
        self._other: Owner | None = None
        self._has_owned = False
        self._lost.set()
        self._checking = Repeating(min(EVERY_S, lease_s / 5), self.check, "the ownership of Redis is not renewed")

    async def start(self) -> None:
        """Take the ownership if nobody else has it, and begin to renew it or to wait for it."""
        try:
            await self.check()
        except StoreUnavailable as error:
            log.warning("the ownership of Redis is not taken yet: %s", error.detail)
        self._checking.start()

    async def stop(self) -> None:
        """Give the ownership back: another cloud need not wait for the lease to lapse."""
        await self._checking.stop()
        if self._mine is not None:
            batch = Batch().expect(CLOUD_OWNER, _encoded(self._mine)).delete(CLOUD_LEASE)
            try:
                await self.store.commit(batch)
            except StrataError as error:
                log.warning("the ownership of Redis is not given back: %s", error.detail)

    async def check(self) -> None:
        """Renew the lease, or take the ownership if nobody else has it."""
        try:
            await (self._renew(self._mine) if self._mine else self._take())
            self.refusal = None
        except StandingBy:
            self.refusal = None
        except StoreUnavailable as error:
            self.refusal = error.detail
            raise

    async def while_held(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that ends as soon as the ownership is lost.

        Raises:
            StandingBy: it was lost.
        """
        working, lost = asyncio.create_task(work), asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise StandingBy(self.standing_by() or "the ownership of Redis was lost for a moment")
        finally:
            for task in (working, lost):
                task.cancel()
            await asyncio.gather(working, lost, return_exceptions=True)

    def standing_by(self) -> str | None:
        """Why this cloud writes nothing, None while it is the owner."""
        if self._mine is not None:
            return None
        other = self._other
        if other is None:
            return "this cloud does not own what is stored in Redis yet" + (f": {self.refusal}" if self.refusal else "")
        whose = "of this installation" if other.installation == self.installation else other.installation
        return f"this cloud stands by: the cloud {whose} on {other.host} owns what is stored in Redis"

    # ---- the fence

    def guard(self) -> tuple[str, bytes]:
        """See `Fence.guard`."""
        if self._mine is None:
            raise StandingBy(self.standing_by() or "")
        return CLOUD_OWNER, _encoded(self._mine)

    async def found(self, value: bytes | None, expected: bytes) -> None:
        """See `Fence.found`. Where Redis was emptied, the ownership is taken again."""
        if self._mine is None or _encoded(self._mine) != expected:
            return  # another task has been told before
        if value is None:
            log.error("Redis was emptied: the documents and checkpoints of all runs in it are gone")
            await self._become(self._mine.token + 1, Batch().expect(CLOUD_OWNER, None))
        elif (owner := _decoded(value)).process == self._process:
            self._mine = owner  # the answer to an earlier taking was lost on the way
        else:
            self._lose(owner)
        self.guard()

    # ---- taking, renewing, losing

    async def _renew(self, mine: Owner) -> None:
        expected = _encoded(mine)
        try:
            await self.store.commit(Batch().expect(CLOUD_OWNER, expected).put(CLOUD_LEASE, b"1", self.lease_s))
        except GuardFailed as error:
            await self.found(error.found, expected)

    async def _take(self) -> None:
        data = await self.store.get(CLOUD_OWNER)
        owner = _decoded(data) if data is not None else None
        batch = Batch().expect(CLOUD_OWNER, data)
        if owner is not None and not self._is_ours(owner):
            if await self.store.get(CLOUD_LEASE) is not None:
                return self._lose(owner)
            batch.expect(CLOUD_LEASE, None)
        await self._become(owner.token + 1 if owner else 1, batch)

    def _is_ours(self, owner: Owner) -> bool:
        """Whether an owner is this process, or the one that this process replaces."""
        replaced = owner.installation == self.installation and not self._has_owned
        return owner.process == self._process or replaced

    async def _become(self, token: int, batch: Batch) -> None:
        mine = Owner(installation=self.installation, process=self._process, host=self._host, token=token)
        try:
            await self.store.commit(batch.put(CLOUD_OWNER, _encoded(mine)).put(CLOUD_LEASE, b"1", self.lease_s))
        except GuardFailed as error:  # another cloud was faster, or the last answer was lost on the way
            if error.key != CLOUD_OWNER or error.found is None:
                return
            if error.found != _encoded(mine):
                return self._lose(_decoded(error.found))
        self._mine, self._other, self._has_owned = mine, None, True
        self._lost.clear()
        self.held.set()
        log.info("cloud %s owns what is stored in Redis (token %s)", self.installation, token)

    def _lose(self, owner: Owner) -> None:
        before, self._mine, self._other = self._other, None, owner
        self.held.clear()
        self._lost.set()
        if owner != before:
            log.warning("%s", self.standing_by())


def _encoded(owner: Owner) -> bytes:
    return owner.model_dump_json().encode()


def _decoded(data: bytes) -> Owner:
    """The owner; an entry of another version is that of an installation without a name."""
    try:
        return Owner.model_validate_json(data)
    except ValidationError:
        return Owner(installation="of another version", process="", host="an unknown host", token=0)
