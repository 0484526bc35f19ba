"""Which certificates the cloud has revoked: kept in its folder of state and in Redis, of which either may be lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shared.core.errors import BadInput
from shared.core.files import write_file
from shared.storage import redis_keys
from shared.storage.key_value import Batch, Store


class Revoked:
    """The serial numbers of certificates that have been revoked and have not ended, the newest last.

    Args:
        path: the file in the folder of state.
        clock: seconds since the epoch.

    Raises:
        BadInput: the file is damaged: nobody knows then who has been revoked.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock = path, clock
        self._ends: dict[str, float] = {}
        if path.exists():
            try:
                self._ends = {str(serial): float(end) for serial, end in json.loads(path.read_bytes()).items()}
            except (ValueError, TypeError, AttributeError):
                why = "bring it back, or remove it if Redis kept its data: it knows the revoked certificates too"
                raise BadInput(f"{path} is damaged: {why}") from None

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
            write_file(self.path, json.dumps(kept).encode(), durable=True)
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
