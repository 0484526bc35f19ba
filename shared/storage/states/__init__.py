"""The states of devices and edges, one for each visit, so that a crashed round can be replayed.

A visit at version v starts from an earlier version and saves its state as v. Which one it starts from:

    newest_before(v)            where a replay visits whom the first attempt visited (the same choices)
    newest_at_or_before(used)   where the message names the newest version that counts: with `revert`, and
                                after a round was retried on a new map, when other seats may be chosen and
                                what the first attempt left behind must not be continued

A replay of v overwrites v. What is committed is never needed below its newest version, hence `forget_before`;
`forget_after` drops what an abandoned attempt left.
"""

from shared.storage.states.base import StateOwner, StateStore, Version
from shared.storage.states.files import FileStateStore
from shared.storage.states.memory import MemoryStateStore

__all__ = ["FileStateStore", "MemoryStateStore", "StateOwner", "StateStore", "Version"]
