"""What a store of versioned states promises, whatever it is made of."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from shared.storage.blobs import Buffer, Parts

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)", re.ASCII)


class Version(NamedTuple):
    """When a state came about; ordered."""

    round_no: int
    edge_round: int = 0
    wave: int = 0

    @property
    def text(self) -> str:
        """The version as text that sorts like the version."""
        return f"{self.round_no:08d}-{self.edge_round:06d}-{self.wave:06d}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version of `text`.

        Raises:
            ValueError: It is none.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"no version: {text[:60]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3]))


class StateOwner(NamedTuple):
    """Whose states: a seat's, or an edge's, in a run."""

    run_id: str
    key: str


class StateStore(Protocol):
    """States by owner and version. A state that was damaged counts as absent.

    Raises (any method that touches a disk): `StorageFailed`.
    """

    def save(self, owner: StateOwner, version: Version, data: Parts) -> None:
        """Keep a state, durable on return; it replaces what an earlier attempt saved as this version."""

    def load(self, owner: StateOwner, version: Version) -> bytes | None:
        """Return the state saved as exactly this version."""

    def versions(self, owner: StateOwner) -> list[Version]:
        """Return the owner's versions, oldest first."""

    def forget_before(self, owner: StateOwner, committed: Version) -> None:
        """Drop what no replay can need: all that is older than the newest version at or before `committed`.

        That newest one stays. With `revert`, `committed` is the newest version that was *used*.
        """

    def drop_run(self, run_id: str) -> None:
        """Forget all owners of a run."""

    def owners(self, run_id: str) -> list[StateOwner]:
        """Return the owners with at least one state in a run, sorted."""

    def runs(self) -> list[str]:
        """Return the runs with at least one owner, sorted."""


def checked(version: Version) -> Version:
    """Return the version.

    Raises:
        ValueError: It counts below 0, and its text would not sort.
    """
    if min(version) < 0:
        raise ValueError(f"a version counts from 0: {version}")
    return version


def buffers_of(data: Parts) -> list[Buffer]:
    """Return the parts of a state as a list."""
    return [data] if isinstance(data, bytes | bytearray | memoryview) else list(data)
