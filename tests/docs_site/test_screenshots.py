"""The pictures of the dashboard: the run that they show fits the topology, and each has few colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from docs_site.screenshots import DEVICES, EDGES, SPEC, small
from strata.spec_files import read_spec


def test_the_topology_is_as_large_as_the_spec_says() -> None:
    spec = read_spec(SPEC, [])
    assert (spec.num_edges, spec.num_devices) == (EDGES, DEVICES)


def test_a_picture_of_few_colours_has_the_size_and_nearly_the_colours_of_the_window(tmp_path: Path) -> None:
    x = np.linspace(0, 255, 320, dtype=np.uint8)
    shades = np.stack([np.tile(x, (200, 1)), np.tile(x[:200, None], (1, 320)), np.full((200, 320), 40)], axis=2)
    Image.fromarray(shades.astype(np.uint8)).save(path := tmp_path / "picture.png")
    small(path)
    with Image.open(path) as kept:
        assert (kept.size, kept.mode) == ((320, 200), "P")
        near = np.abs(np.asarray(kept.convert("RGB"), dtype=int) - shades.astype(int))
    assert near.mean() < 8
