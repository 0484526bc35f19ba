"""One set of tests for all stores of versioned states."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shared.storage.blobs import StorageFailed
from shared.storage.states import FileStateStore, StateOwner, StateStore, Version
from tests.fakes.memory_state_store import MemoryStateStore

SEAT = StateOwner("run", "seat 1")


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    return MemoryStateStore() if request.param == "memory" else FileStateStore(tmp_path / "states")


def fill(store: StateStore, *versions: Version) -> None:
    for version in versions:
        store.save(SEAT, version, version.text.encode())


class TestContract:
    def test_a_state_round_trips_byte_for_byte(self, store: StateStore) -> None:
        store.save(SEAT, Version(1, 2, 3), [b"\x00a", memoryview(b"\xff"), b""])
        assert store.load(SEAT, Version(1, 2, 3)) == b"\x00a\xff"
        store.save(SEAT, Version(1, 2, 4), b"")
        assert store.load(SEAT, Version(1, 2, 4)) == b""

    def test_versions_compare_as_numbers(self, store: StateStore) -> None:
        fill(store, Version(10), Version(9), Version(123_456_789), Version(9, 10), Version(9, 9))
        assert store.versions(SEAT) == [Version(9), Version(9, 9), Version(9, 10), Version(10), Version(123_456_789)]
        with pytest.raises(ValueError, match="counts from 0"):
            store.save(SEAT, Version(-1), b"1")

    def test_forget_before_keeps_the_newest_committed_state_and_all_later_ones(self, store: StateStore) -> None:
        fill(store, Version(1), Version(2), Version(4), Version(5))
        store.forget_before(SEAT, Version(3))  # the seat did not train in round 3
        assert store.versions(SEAT) == [Version(2), Version(4), Version(5)]
        store.forget_before(SEAT, Version(4))
        assert store.versions(SEAT) == [Version(4), Version(5)]
        store.forget_before(SEAT, Version(1))
        assert store.versions(SEAT) == [Version(4), Version(5)]

    def test_owners_have_separate_states(self, store: StateStore) -> None:
        names = [("run", "a"), ("run", "b"), ("run/a", "a"), ("ru", "n/a"), ("..", "..")]
        owners = [StateOwner(*each) for each in names]
        for owner in owners:
            store.save(owner, Version(1), repr(owner).encode())
        for owner in owners:
            assert store.load(owner, Version(1)) == repr(owner).encode()
        assert store.owners("run") == [StateOwner("run", "a"), StateOwner("run", "b")]
        assert store.runs() == ["..", "ru", "run", "run/a"]
        store.drop_run("run")
        assert store.owners("run") == []
        assert store.runs() == ["..", "ru", "run/a"]
        store.save(StateOwner("run", "a"), Version(2), b"again")
        assert store.versions(StateOwner("run", "a")) == [Version(2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "states"


def only_file(folder: Path, version: Version) -> Path:
    (path,) = folder.glob(f"*/*/{version.text}")
    return path


class TestFiles:
    def test_a_folder_that_cannot_be_made_is_named_at_once(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_bytes(b"a file")
        with pytest.raises(StorageFailed, match=str(folder)):
            FileStateStore(folder)

    @pytest.mark.parametrize("kept", [0, 1, 63, 64, 70, None], ids=str)
    def test_a_damaged_file_counts_as_absent_until_it_is_superseded(self, folder: Path, kept: int | None) -> None:
        store = FileStateStore(folder)
        fill(store, Version(1), Version(2))
        path = only_file(folder, Version(2))
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if kept is None else data[:kept])
        assert store.load(SEAT, Version(2)) is None
        assert kept is None or store.versions(SEAT) == [Version(1)]
        store.forget_before(SEAT, Version(2))
        assert store.load(SEAT, Version(1)) == b"00000001-000000-000000"
        fill(store, Version(2))  # a replay replaces it
        assert store.load(SEAT, Version(2)) == b"00000002-000000-000000"
        only_file(folder, Version(1)).write_bytes(b"")
        store.forget_before(SEAT, Version(2))
        assert [path.name for path in folder.glob("*/*/*")] == [Version(2).text]

    @pytest.mark.parametrize("broken", ["fsync", "replace"])
    def test_a_full_disk_leaves_the_old_state(self, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
        store = FileStateStore(folder)
        store.save(SEAT, Version(1), b"old")

        def no_space(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, broken, no_space)
        with pytest.raises(StorageFailed, match="No space left"):
            store.save(SEAT, Version(1), b"new")
        monkeypatch.undo()
        assert store.load(SEAT, Version(1)) == b"old"
        assert [path.name for path in folder.glob("*/*/*")] == [Version(1).text]

    def test_file_and_folders_are_on_the_disk_after_save(self, folder: Path, on_disk: list[str]) -> None:
        fill(FileStateStore(folder), Version(1), Version(2))
        whats = [what.partition(" ")[0] for what in on_disk]
        assert whats == ["folder", "folder", *["file", "rename", "folder"] * 2]  # first those of run and owner

    def test_files_left_unfinished_by_a_crash_are_deleted_at_the_next_start(self, folder: Path) -> None:
        store = FileStateStore(folder)
        fill(store, Version(1))
        left = only_file(folder, Version(1)).with_name(".tmp-" + Version(2).text)
        left.write_bytes(b"half")
        assert store.versions(SEAT) == [Version(1)]
        FileStateStore(folder)
        assert not left.exists()


OWNERS = st.sampled_from([StateOwner("r", "a"), StateOwner("r", "b"), StateOwner("s", "a")])
VERSIONS = st.builds(Version, st.integers(0, 4), st.integers(0, 2), st.integers(0, 2))


class DictionaryComparison(RuleBasedStateMachine):
    """Any sequence of calls gives the same answers on both stores as on a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.stores: list[StateStore] = [MemoryStateStore(), FileStateStore(Path(self.folder.name), fsync=False)]
        self.model: dict[tuple[StateOwner, Version], bytes] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    def drop_all(self, gone: Any) -> None:
        self.model = {key: data for key, data in self.model.items() if not gone(*key)}

    @rule(owner=OWNERS, version=VERSIONS, data=st.binary(max_size=8))
    def save(self, owner: StateOwner, version: Version, data: bytes) -> None:
        self.model[owner, version] = data
        for store in self.stores:
            store.save(owner, version, data)

    @rule(owner=OWNERS, version=VERSIONS)
    def find(self, owner: StateOwner, version: Version) -> None:
        for store in self.stores:
            assert store.load(owner, version) == self.model.get((owner, version))

    @rule(owner=OWNERS, committed=VERSIONS)
    def forget_before(self, owner: StateOwner, committed: Version) -> None:
        floor = max((v for o, v in self.model if o == owner and v <= committed), default=Version(0))
        self.drop_all(lambda o, v: o == owner and v < floor)
        for store in self.stores:
            store.forget_before(owner, committed)

    @rule(owner=OWNERS, first=VERSIONS, last=VERSIONS)
    def forget_between(self, owner: StateOwner, first: Version, last: Version) -> None:
        self.drop_all(lambda o, v: o == owner and first <= v < last)
        for store in self.stores:
            store.forget_between(owner, first, last)

    @rule(run_id=st.sampled_from(["r", "s"]))
    def drop_run(self, run_id: str) -> None:
        self.drop_all(lambda o, v: o.run_id == run_id)
        for store in self.stores:
            store.drop_run(run_id)

    @rule()
    def restart(self) -> None:
        self.stores[1] = FileStateStore(Path(self.folder.name), fsync=False)

    @invariant()
    def listings_agree(self) -> None:
        for store in self.stores:
            assert store.runs() == sorted({o.run_id for o, _ in self.model})
            assert store.owners("r") == sorted({o for o, _ in self.model if o.run_id == "r"})
            for owner in store.owners("r"):
                assert store.versions(owner) == sorted(v for o, v in self.model if o == owner)


DictionaryComparison.TestCase.settings = settings(max_examples=25, stateful_step_count=20)
TestAgainstADict = DictionaryComparison.TestCase
