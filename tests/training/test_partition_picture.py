"""A partition's picture is written, small or large."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from shared.training.partition import label_counts
from shared.training.pictures import partition_picture


@pytest.mark.parametrize(("n_clients", "n_classes", "width"), [(1, 2, 720), (10, 10, 960), (100, 10, 1680)])
def test_picture_is_a_png_as_wide_as_it_has_devices(tmp_path: Path, n_clients: int, n_classes: int, width: int) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (n_clients, n_classes))
    partition_picture(counts, tmp_path / "plots" / "p.png", "a title")
    head = (tmp_path / "plots" / "p.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (width, 720)


def test_label_counts_are_rows_of_clients() -> None:
    parts = [np.array([0, 1]), np.array([2, 3, 4])]
    assert label_counts(parts, np.array([0, 2, 2, 2, 1]), 3).tolist() == [[1, 0, 1], [0, 1, 2]]
