"""Files are replaced or lengthened as a whole, and an error names them."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from shared.core.files import append_file, write_file


def test_lines_are_appended_all_or_none_and_the_error_names_the_file(tmp_path: Path) -> None:
    """The limit on the size of files stands for a full disk: the system writes a part before it refuses."""
    path, limits = tmp_path / "table.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    append_file(path, b"whole\n")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(OSError, match=r"table\.csv") as appended:
            append_file(path, b"x" * 200_000)
        with pytest.raises(OSError, match=r"table\.csv") as replaced:
            write_file(path, b"x" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert appended.value.errno == replaced.value.errno == errno.EFBIG
    assert path.read_bytes() == b"whole\n"
    assert list(tmp_path.iterdir()) == [path]
