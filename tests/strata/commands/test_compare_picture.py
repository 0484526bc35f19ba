"""The picture of `strata compare`: where it is written, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.core.scores import Spread
from shared.results.comparison import compare
from shared.results.comparison_figure import draw_comparison
from tests.strata.commands.test_compare import compared, in_folder
from tests.strata.conftest import Strata


@pytest.mark.integration
def test_picture_is_written_to_the_given_path_and_the_path_printed(strata: Strata, runs: Path, tmp_path: Path) -> None:
    in_folder(runs, "r1", [0.5, 0.6])
    assert "picture: runs/compare.png" in strata("compare", "r1").err
    assert (runs / "compare.png").read_bytes()[:4] == b"\x89PNG"
    assert compared(strata, "r1", "--out", "mine/a.svg")["picture"] == str(tmp_path / "mine" / "a.svg")
    assert (tmp_path / "mine" / "a.svg").read_text().startswith("<?xml")


def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folders: Sequence[Path]) -> Any:
    """Captures the figure that would be saved."""
    from matplotlib.figure import Figure

    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    assert draw_comparison(tmp_path / "picture.png", compare(folders))
    return saved[0]


def test_run_has_one_style_in_all_panels_and_axes_show_their_units(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Path
) -> None:
    names = ("a", "_b", "c$d$")
    folders = [in_folder(runs, f"r{n}", [0.1, 0.5, 0.9], name=name) for n, name in enumerate(names)]
    figure = drawn(monkeypatch, tmp_path, folders)
    assert [axes.get_xlabel() for axes in figure.axes] == ["rounds", "simulated time (s)", "bytes up (B)"]
    assert figure.axes[0].get_ylabel() == "accuracy (global model)"
    curves = [[line for line in axes.lines if len(line.get_xdata()) == 3] for axes in figure.axes]
    for of_one_run in zip(*curves, strict=True):
        assert len({(line.get_color(), line.get_linestyle()) for line in of_one_run}) == 1
    assert len({line.get_color() for line in curves[0]}) == 3
    assert [list(lines[0].get_xdata()) for lines in curves] == [[1, 2, 3], [4, 8, 12], [200, 400, 600]]
    written = [entry.get_text().strip() for entry in figure.legends[0].get_texts()]
    assert written == ["a", "_b", "c$d$", "target 90 %, circled where a run first reaches it"]


def test_a_run_over_another_with_the_same_accuracies_is_dashed_so_that_both_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Path
) -> None:
    courses = ([0.1, 0.5, 0.9], [0.1, 0.6, 0.9], [0.1, 0.5, 0.9])
    figure = drawn(monkeypatch, tmp_path, [in_folder(runs, f"r{n}", each) for n, each in enumerate(courses)])
    for axes in figure.axes:
        curves = [line for line in axes.lines if len(line.get_xdata()) == 3]
        assert [line.get_linestyle() for line in curves] == ["-", "-", "--"]


def test_clients_of_each_run_have_a_box_in_its_colour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Path
) -> None:
    """Runs that record the spread of accuracies over clients; the middle one does not."""
    spreads: list[dict[str, Spread]] = [
        {"received": Spread.of([0.1, 0.5, 0.9])},
        {},
        {"received": Spread.of([0.4, 0.5, 0.7])},
    ]
    folders = [in_folder(runs, f"r{n}", [0.1, 0.5], clients=each) for n, each in enumerate(spreads)]
    figure = drawn(monkeypatch, tmp_path, folders)
    *curves, boxes = figure.axes
    assert (len(curves), boxes.get_xlabel()) == (3, "clients at the end")
    spans: dict[str, set[float]] = {}
    for line in boxes.lines:
        spans.setdefault(line.get_color(), set()).update(round(float(y), 6) for y in line.get_ydata())
    assert spans.keys() == {"#0072B2", "#009E73"} <= {line.get_color() for line in curves[0].lines}
    assert spans["#0072B2"] == {0.1, 0.3, 0.5, 0.7, 0.9}  # minimum, quartiles, maximum; the mean equals the median here
    assert {0.4, 0.45, 0.5, 0.6, 0.7, 0.533333} == spans["#009E73"]


@pytest.mark.slow
def test_many_runs_are_distinguishable_and_inside_the_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Path
) -> None:
    folders = [in_folder(runs, f"r{n}", [0.1, 0.5], spec={"seed": n}, status="running") for n in range(60)]
    figure = drawn(monkeypatch, tmp_path, folders)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2][:60]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 60
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)
