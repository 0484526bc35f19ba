"""Versioned states in this process, for tests."""

from __future__ import annotations

from shared.storage.blobs import Parts
from shared.storage.states.base import StateOwner, Version, buffers_of, checked


class MemoryStateStore:
    """In-process `Versions`, gone with the process."""

    def __init__(self) -> None:
        self._states: dict[StateOwner, dict[Version, bytes]] = {}

    def save(self, owner: StateOwner, version: Version, data: Parts) -> None:
        """See `Versions.save`."""
        self._states.setdefault(owner, {})[checked(version)] = b"".join(buffers_of(data))

    def load(self, owner: StateOwner, version: Version) -> bytes | None:
        """See `Versions.load`."""
        return self._states.get(owner, {}).get(version)

    def newest_before(self, owner: StateOwner, version: Version) -> tuple[Version, bytes] | None:
        """See `Versions.newest_before`."""
        return max((item for item in self._states.get(owner, {}).items() if item[0] < version), default=None)

    def newest_at_or_before(self, owner: StateOwner, version: Version) -> tuple[Version, bytes] | None:
        """See `Versions.newest_at_or_before`."""
        return max((item for item in self._states.get(owner, {}).items() if item[0] <= version), default=None)

    def versions(self, owner: StateOwner) -> list[Version]:
        """See `Versions.versions`."""
        return sorted(self._states.get(owner, {}))

    def forget_before(self, owner: StateOwner, committed: Version) -> None:
        """See `Versions.forget_before`."""
        for version in [known for known in self.versions(owner) if known <= committed][:-1]:
            del self._states[owner][version]

    def forget_after(self, owner: StateOwner, committed: Version) -> None:
        """See `Versions.forget_after`."""
        for version in self.versions(owner):
            if version > committed:
                del self._states[owner][version]

    def drop(self, owner: StateOwner) -> None:
        """See `Versions.drop`."""
        self._states.pop(owner, None)

    def drop_run(self, run_id: str) -> None:
        """See `Versions.drop_run`."""
        for owner in self.owners(run_id):
            self.drop(owner)

    def owners(self, run_id: str) -> list[StateOwner]:
        """See `Versions.owners`."""
        return sorted(owner for owner, states in self._states.items() if owner.run_id == run_id and states)

    def runs(self) -> list[str]:
        """See `Versions.runs`."""
        return sorted({owner.run_id for owner, states in self._states.items() if states})
