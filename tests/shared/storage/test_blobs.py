"""Files by digest: content survives, referenced files stay, and faults have named errors."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.core.errors import BadInput
from shared.storage.blobs import BlobCorrupt, BlobMissing, Blobs, Parts, StorageFailed

ABC = hashlib.sha256(b"abc").hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def names(blobs: Blobs) -> list[str]:
    return sorted(os.listdir(blobs.path(ABC).parent))


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_digest_is_the_sha256_of_the_content_for_any_parts(blobs: Blobs) -> None:
    alike: list[Parts] = [b"abc", bytearray(b"abc"), memoryview(b"abc"), [b"a", b"", memoryview(b"bc")], iter([b"abc"])]
    assert [blobs.put(parts) for parts in alike] == [ABC] * 5
    inode = blobs.path(ABC).stat().st_ino
    assert blobs.put([b"abc"]) == ABC
    assert blobs.path(ABC).stat().st_ino == inode, "a file that exists is not written again"
    assert names(blobs) == [ABC]
    assert bytes(blobs.open(ABC)) == blobs.path(ABC).read_bytes() == b"abc"
    empty, wide = hashlib.sha256(b"").hexdigest(), memoryview(b"abcdefgh").cast("d")
    assert blobs.put([]) == blobs.put(b"") == empty
    assert bytes(blobs.open(empty)) == b""
    inode = blobs.path(digest := blobs.put([wide])).stat().st_ino
    assert blobs.path(blobs.put([wide])).stat().st_ino == inode
    assert bytes(blobs.open(digest)) == b"abcdefgh"


def test_a_missing_or_changed_file_is_named_and_one_of_the_wrong_length_replaced_by_the_next_put(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing, match=ABC):
        blobs.open(ABC)
    for changed in (b"abd", b"ab"):
        blobs.path(blobs.put(b"abc")).write_bytes(changed)
        with pytest.raises(BlobCorrupt, match=ABC):
            blobs.open(ABC)
        if len(changed) == 3:
            assert bytes(blobs.open(ABC, verify=False)) == changed
    blobs.put(b"abc")
    assert bytes(blobs.open(ABC)) == b"abc"


@pytest.mark.parametrize("name", ["", "..", "../" * 20 + "etc/passwd", ABC[:-1], ABC + "0", ABC.upper(), ABC + "\n"])
def test_a_name_that_is_not_a_digest_opens_no_file(blobs: Blobs, name: str) -> None:
    with pytest.raises(BadInput, match="sha256"):
        blobs.path(name)
    with pytest.raises(BadInput, match="sha256"):
        blobs.open(name)


def test_an_open_file_is_read_only_and_stays_readable_after_its_removal(blobs: Blobs) -> None:
    data = blobs.open(blobs.put(b"abc"))
    assert blobs.collect(()) == [], "files put since the last collection survive one"
    assert bytes(blobs.open(ABC)) == b"abc"
    assert blobs.collect(()) == [ABC]
    assert bytes(data) == b"abc"
    assert data.readonly


class TestCollect:
    def test_only_unreferenced_files_are_deleted_and_named(self, tmp_path: Path) -> None:
        digests = [Blobs(tmp_path).put(b"%d" % n) for n in range(4)]
        later = Blobs(tmp_path)  # as after a restart: nothing is recent
        assert later.collect({digests[0]}, keep=[digests[1]]) == sorted(digests[2:])
        assert sorted(os.listdir(tmp_path)) == sorted(digests[:2])
        assert later.collect({digests[0]}) == [digests[1]]
        later.put(b"0")  # a round with the same result as the previous one, not committed yet
        assert later.collect(()) == []

    def test_files_being_written_stay_and_those_of_a_crash_are_deleted(self, blobs: Blobs) -> None:
        folder = blobs.path(ABC).parent
        (folder / ".tmp-left").write_bytes(b"half")
        (folder / "README").write_bytes(b"not ours")

        def parts() -> Iterator[bytes]:
            yield b"a"
            assert blobs.collect(()) == []
            yield b"bc"

        assert blobs.put(parts()) == ABC
        assert names(blobs) == ["README", ABC]
        assert blobs.collect(()) == []

    def test_collection_during_many_writes_keeps_all_referenced_files(self, blobs: Blobs) -> None:
        referenced: set[str] = set()
        done = [0, 0]

        def write(writer: int) -> None:
            for n in range(60):
                referenced.add(blobs.put(b"%d" % (10 * writer + n % 20)))
                done[writer] += 1

        threads = [threading.Thread(target=write, args=(writer,)) for writer in (0, 1)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            blobs.collect(set(referenced))
            before = list(done)  # a stored file is referenced before the second collection after it
            while any(n < b + 1 and t.is_alive() for n, b, t in zip(done, before, threads, strict=True)):
                time.sleep(0.0001)
        assert len(referenced) == 30
        assert set(names(blobs)) == referenced


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_is_named_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    blobs = Blobs(tmp_path)
    with pytest.raises(ZeroDivisionError):
        blobs.put(failing())
    monkeypatch.setattr(os, broken, no_space)
    with pytest.raises(StorageFailed, match="No space left") as caught:
        blobs.put(b"abc")
    assert caught.value.status == 507
    assert names(blobs) == []
    if broken == "fsync":
        assert Blobs(tmp_path, fsync=False).put(b"abc") == ABC, "without it, put does not wait for the disk"
    monkeypatch.undo()
    assert blobs.put(b"abc") == ABC
    with pytest.raises(StorageFailed, match="Not a directory"):
        Blobs(blobs.path(ABC) / "blobs")


def test_file_and_folder_are_on_the_disk_when_put_returns(blobs: Blobs, on_disk: list[str]) -> None:
    """The whole content is written before the disk is waited for."""
    blobs.put([b"abc", b"defg"])
    assert on_disk == ["file of 7", "rename", "folder"]
