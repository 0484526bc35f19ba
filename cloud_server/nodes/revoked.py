"""Which certificates the cloud has revoked: kept in its folder of state and in Redis, of which either may be lost."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shared.storage import redis_keys
from shared.storage.key_value import Batch, Store

log = logging.getLogger(__name__)


class Revoked:
    """The serial numbers of certificates that have been revoked and have not ended, the newest last.

    Args:
        path: the file in the folder of state.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock = path, clock
        self._ends: dict[str, float] = {}
        if path.exists():
            self._ends = {str(serial): float(end) for serial, end in json.loads(path.read_bytes()).items()}

    def __contains__(self, serial: object) -> bool:
        return serial in self._ends

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, ends: Mapping[str, float]) -> None:
        """Revoke certificates.

        Args:
            ends: seconds since the epoch at which they end, by serial number.
        """
        now = self.clock()
        kept = {serial: end for serial, end in {**self._ends, **ends}.items() if end > now}
        if kept != self._ends:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f".{self.path.name}.part")
            part.write_text(json.dumps(kept), encoding="ascii")
            part.replace(self.path)
            self._ends = kept

    def into(self, batch: Batch, ends: Mapping[str, float]) -> Batch:
        """Have a batch mark certificates as revoked in Redis."""
        for serial, end in ends.items():
            batch.put(redis_keys.cloud_revoked(serial), json.dumps(end).encode(), max(end - self.clock(), 1.0))
        return batch

    async def load(self, store: Store) -> None:
        """Add what Redis knows, and forget what has ended."""
        found = await store.scan(redis_keys.CLOUD_REVOKED)
        self.add({redis_keys.last_part(key): float(end) for key, end in found.items()})
