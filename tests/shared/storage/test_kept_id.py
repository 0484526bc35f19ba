"""Ids that a process draws once and keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.storage.kept_id import kept_id


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"edge-1\n", "edge-1"),
        (b"", None),
        (b"../edge", None),
        (b"a b", None),
        (b"e" * 65, None),
        (b"\xff\xfe", None),
        ("ed\u0441".encode(), None),
    ],
)
def test_a_file_that_holds_no_id_gets_one_which_stays(tmp_path: Path, content: bytes, kept: str | None) -> None:
    (path := tmp_path / "edge-name").write_bytes(content)
    found = kept_id(path, "edge-", n_bytes=4)
    assert found == kept if kept else (found.startswith("edge-") and len(found) == 13)
    assert kept_id(path, "edge-", n_bytes=4) == found
