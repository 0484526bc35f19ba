"""A `StateStore` in this process."""

from __future__ import annotations

from shared.storage.blobs import Parts
from shared.storage.states.state_store import StateOwner, Version, buffers_of, checked


class MemoryStateStore:
    """States in a dictionary, with the behaviour of `FileStateStore`."""

    def __init__(self) -> None:
        self._states: dict[StateOwner, dict[Version, bytes]] = {}

    def save(self, owner: StateOwner, version: Version, data: Parts) -> None:
        """See `StateStore.save`."""
        self._states.setdefault(owner, {})[checked(version)] = b"".join(buffers_of(data))

    def load(self, owner: StateOwner, version: Version) -> bytes | None:
        """See `StateStore.load`."""
        return self._states.get(owner, {}).get(version)

    def versions(self, owner: StateOwner) -> list[Version]:
        """See `StateStore.versions`."""
        return sorted(self._states.get(owner, {}))

    def forget_before(self, owner: StateOwner, committed: Version) -> None:
        """See `StateStore.forget_before`."""
        for version in [known for known in self.versions(owner) if known <= committed][:-1]:
            del self._states[owner][version]

    def forget_between(self, owner: StateOwner, first: Version, last: Version) -> None:
        """See `StateStore.forget_between`."""
        for version in [known for known in self.versions(owner) if first <= known < last]:
            del self._states[owner][version]

    def drop_run(self, run_id: str) -> None:
        """See `StateStore.drop_run`."""
        for owner in self.owners(run_id):
            del self._states[owner]

    def owners(self, run_id: str) -> list[StateOwner]:
        """See `StateStore.owners`."""
        return sorted(owner for owner, states in self._states.items() if owner.run_id == run_id and states)

    def runs(self) -> list[str]:
        """See `StateStore.runs`."""
        return sorted({owner.run_id for owner, states in self._states.items() if states})
