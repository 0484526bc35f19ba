"""Sizes of sub-networks in a run's record, and their picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.plots.subnetworks import sizes_of
from shared.results.folder import read_rounds
from shared.results.manifest import Manifest
from shared.results.reader import read_history
from shared.results.report.figures import pictures
from shared.results.writer import write_results
from tests.strata.samples import a_round, a_run

WHOLE = {"n_weights": {"features.0": 30, "head": 10}, "multiply_adds": {"features.0": 600, "head": 10}}


def cloud_figures(first: float, head: float) -> dict[str, object]:
    """Returns the cloud's figures of a round."""
    means = {
        "n_weights": {"features.0": first, "head": head},
        "multiply_adds": {"features.0": 20 * first, "head": head},
    }
    return {"cloud": {**means, "supernet": WHOLE, "children_won": 2}}


def pictured(folder: Path) -> set[str]:
    """Returns the names of the pictures of a results folder."""
    return {shown.picture.name for shown in pictures(folder, read_history(folder))}


def test_shares_of_the_supernet_are_read_back_and_drawn(tmp_path: Path) -> None:
    rounds = [
        a_round(1, figures={}),
        a_round(2, figures=cloud_figures(24, 8)),
        a_round(3, figures=cloud_figures(6, 4)),
        a_round(3, kind="evaluate", figures={}),
    ]
    info = a_run(run="r9", algorithm="es_afl")
    write_results(tmp_path / "r9", info, rounds, model=None, manifest=Manifest.of(info))
    sizes = sizes_of(read_rounds(tmp_path / "r9"))
    assert [each.round_no for each in sizes] == [2, 3]
    assert [each.share("n_weights") for each in sizes] == pytest.approx([32 / 40, 10 / 40])
    assert sizes[1].share("multiply_adds") == pytest.approx(124 / 610)
    assert sizes[1].shares("n_weights") == pytest.approx({"features.0": 0.2, "head": 0.4})
    assert "sub_networks" in pictured(tmp_path / "r9")


def test_run_without_sub_networks_has_no_picture_of_them(tmp_path: Path) -> None:
    info = a_run(run="r8")
    write_results(tmp_path / "r8", info, [a_round(1)], model=None, manifest=Manifest.of(info))
    assert sizes_of(read_rounds(tmp_path / "r8")) == []
    assert "sub_networks" not in pictured(tmp_path / "r8")
