"""The interface of a store of versioned states."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from shared.storage.blobs import Buffer, Parts

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)", re.ASCII)


class Version(NamedTuple):
    """The visit that saved a state; versions are ordered."""

    round_no: int
    edge_round: int = 0
    wave: int = 0

    @property
    def text(self) -> str:
        """The version as text, which sorts likewise."""
        return f"{self.round_no:08d}-{self.edge_round:06d}-{self.wave:06d}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Returns the version of a text.

        Raises:
            ValueError: it is not a version.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"no version: {text[:60]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3]))


class StateOwner(NamedTuple):
    """The owner of states: a seat or an edge in a run."""

    run_id: str
    key: str


class StateStore(Protocol):
    """States by owner and version. A damaged state counts as absent.

    Methods that use a disk raise `StorageFailed`.
    """

    def save(self, owner: StateOwner, version: Version, data: Parts) -> None:
        """Saves a state durably; it replaces one that an earlier attempt saved as this version."""

    def load(self, owner: StateOwner, version: Version) -> bytes | None:
        """Returns the state of exactly this version, None if there is none."""

    def versions(self, owner: StateOwner) -> list[Version]:
        """Returns the owner's versions, oldest first."""

    def forget_before(self, owner: StateOwner, committed: Version) -> None:
        """Deletes the versions that no replay needs: those before the newest one at or before `committed`.

        `committed` is the newest version that counts, which with `revert` is the newest that was *used*.
        """

    def forget_between(self, owner: StateOwner, first: Version, last: Version) -> None:
        """Deletes the versions from `first` up to, but without, `last`."""

    def drop_run(self, run_id: str) -> None:
        """Deletes the states of all owners of a run."""

    def owners(self, run_id: str) -> list[StateOwner]:
        """Returns the owners in a run with at least one state, sorted."""

    def runs(self) -> list[str]:
        """Returns the runs with at least one owner, sorted."""


def checked(version: Version) -> Version:
    """Returns a version.

    Raises:
        ValueError: a number of it is below 0, with which its text would not sort.
    """
    if min(version) < 0:
        raise ValueError(f"a version counts from 0: {version}")
    return version


def buffers_of(data: Parts) -> list[Buffer]:
    """Returns the parts of a state as a list."""
    return [data] if isinstance(data, bytes | bytearray | memoryview) else list(data)
