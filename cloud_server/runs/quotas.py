"""The limits of users: how many of their runs have not ended, and how much their results folders hold.

They are checked when a run is created or begins anew. A run that trains is never ended by them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

from cloud_server.runs.repository import RunRepository
from cloud_server.runs.results_writer import ResultsFolders
from cloud_server.users.tokens import Users
from cloud_server.users.user import User
from shared.core.errors import StrataError, TooMany
from shared.core.formatting import size
from shared.results.disk_use import bytes_by_owner
from shared.run_records.runs import FINAL
from shared.service.api.users import UserInfo
from shared.storage import redis_keys


class DiskQuota(StrataError):
    """The results of a user hold more bytes than they may (507); the message names use and limit."""

    status, code = 507, "disk_quota"


@dataclass(frozen=True)
class Quotas:
    """Checks users' limits.

    Attributes:
        users: with limits of their own.
        repository: knows the runs.
        results: the results folders.
        max_runs: the limit of users without one of their own; None for none.
        max_bytes: likewise.
    """

    users: Users
    repository: RunRepository
    results: ResultsFolders
    max_runs: int | None
    max_bytes: int | None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def check_runs(self, owner: str | None, key: str | None = None) -> None:
        """Check that one more run of an owner may begin beside those that have not ended.

        Args:
            owner: of the run; the administrator has no limits.
            key: the idempotency key with which it is requested; none begins where it has created one already.

        Raises:
            TooMany: as many of the user's runs have not ended as may.
        """
        if (user := await self._limited(owner, key)) is None:
            return
        max_runs, _ = self._limits(user)
        if max_runs is not None and (n_runs := await self._n_runs(user.name)) >= max_runs:
            raise TooMany(
                f"{n_runs} runs of {user.name} have not ended, the limit is {max_runs}: wait for one, or stop one",
                field="max_runs",
            )

    async def check_bytes(self, owner: str | None, key: str | None = None) -> None:
        """Check that an owner's results leave room for one more run. Reading their sizes may take long.

        Args:
            owner: of the run; the administrator has no limits.
            key: as `check_runs` has it.

        Raises:
            DiskQuota: the user's results folders hold as much as they may.
        """
        if (user := await self._limited(owner, key)) is None:
            return
        _, max_bytes = self._limits(user)
        if max_bytes is not None and (used := (await self._used())[user.name]) >= max_bytes:
            raise DiskQuota(
                f"the results of {user.name} hold {size(used)}, the limit is {size(max_bytes)}: `strata rm --results` "
                "removes those of a run",
                field="max_bytes",
            )

    async def infos(self, only: str | None) -> list[UserInfo]:
        """All users, or only one, by name, with the limits that hold and what they use."""
        used = await self._used()
        found = [user for name, user in sorted(self.users.by_name.items()) if only in (None, name)]
        return [await self._info(user, used[user.name]) for user in found]

    async def _info(self, user: User, n_bytes: int) -> UserInfo:
        max_runs, max_bytes = self._limits(user)
        n_runs = await self._n_runs(user.name)
        limits = {"max_runs": max_runs, "max_bytes": max_bytes}
        return UserInfo(name=user.name, created_at=user.created_at, n_runs=n_runs, n_bytes=n_bytes, **limits)

    async def _limited(self, owner: str | None, key: str | None) -> User | None:
        """The user whose limits hold for a request, None if none do."""
        user = self.users.by_name.get(owner) if owner is not None else None
        return None if user is None or (key is not None and await self._is_used(key)) else user

    async def _used(self) -> Counter[str | None]:
        """The bytes of results by owner. Whoever asks at the same time waits, so that one thread reads at a time."""
        async with self._reading:
            return await asyncio.to_thread(bytes_by_owner, self.results.runs_dir)

    async def _is_used(self, key: str) -> bool:
        store = self.repository.store
        before = await store.get(redis_keys.cloud_idempotency(key))
        return before is not None and await store.get(redis_keys.cloud_run(json.loads(before)["run"])) is not None

    def _limits(self, user: User) -> tuple[int | None, int | None]:
        """A user's limits of runs and of bytes."""
        return (
            self.max_runs if user.max_runs is None else user.max_runs,
            self.max_bytes if user.max_bytes is None else user.max_bytes,
        )

    async def _n_runs(self, name: str) -> int:
        return sum(info.owner == name and info.status not in FINAL for info in await self.repository.infos())
