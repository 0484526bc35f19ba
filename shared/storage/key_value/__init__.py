"""Small values and streams of cloud and edges: Redis in service, a fake (`tests/fakes`) in most tests.

    Store          what cloud and edges need of it
    Batch          what one transaction does, with compare-and-set guards
    Entry          one entry of a stream
    RedisStore     Redis 6.2 or newer
    RedisUsers     makes and removes the users of a Redis server
    StoreUser      one of them: its name and password
    FencedStore    a store that only its owner writes to

Large values (tensors, long tables) are files, see `shared.storage.blobs`; the store holds their digests.
"""

from shared.storage.key_value.address import RedisUrl, has_user, with_password
from shared.storage.key_value.fenced import FencedStore, StandingBy
from shared.storage.key_value.redis import RedisStore, StoreUser
from shared.storage.key_value.redis_users import RedisUsers
from shared.storage.key_value.server_info import ServerInfo
from shared.storage.key_value.store import (
    BadEntryId,
    Batch,
    Entry,
    GuardFailed,
    KeyGone,
    Payload,
    Store,
    StoreUnavailable,
    WrongKind,
)

__all__ = [
    "BadEntryId",
    "Batch",
    "Entry",
    "FencedStore",
    "GuardFailed",
    "KeyGone",
    "Payload",
    "RedisStore",
    "RedisUrl",
    "RedisUsers",
    "ServerInfo",
    "StandingBy",
    "Store",
    "StoreUnavailable",
    "StoreUser",
    "WrongKind",
    "has_user",
    "with_password",
]
