"""The states of devices and edges, one for each visit, so that a crashed round can be replayed.

A visit at version v loads the version that its order names, and saves its state as v. The name matters: a round that is
retried with another placement may choose other seats, and a state that the first attempt left must not be continued.

A replay of v overwrites v. States go once no replay can begin from them: see `shared/federation/kept_states.py`.
"""

from shared.storage.states.files import FileStateStore
from shared.storage.states.state_store import StateOwner, StateStore, Version

__all__ = ["FileStateStore", "StateOwner", "StateStore", "Version"]
