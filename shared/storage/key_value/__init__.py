"""The seam between a tier and what remembers its small things: Redis in service, memory in tests.

    Store          what cloud and edges ask of it
    Batch          what one transaction does, with compare-and-set guards
    Entry          one entry of a stream
    MemoryStore    in this process, gone with it
    RedisStore     Redis 6.2 or newer

Large things (tensors, long tables) are files, see `shared.blobs`; the store holds their digests.
"""

from shared.storage.key_value.base import (
    BadEntryId,
    Batch,
    Entry,
    GuardFailed,
    Payload,
    Store,
    StoreUnavailable,
    WrongKind,
)
from shared.storage.key_value.memory import MemoryStore
from shared.storage.key_value.redis import RedisStore

__all__ = [
    "BadEntryId",
    "Batch",
    "Entry",
    "GuardFailed",
    "MemoryStore",
    "Payload",
    "RedisStore",
    "Store",
    "StoreUnavailable",
    "WrongKind",
]
