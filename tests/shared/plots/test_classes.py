"""The picture of classes: names, undefined shares, and how many classes it shows."""

from __future__ import annotations

import pytest

from shared.core.scores import ClassCounts
from shared.plots.classes import MOST_CLASSES, classes
from shared.plots.history import RunHistory
from shared.plots.picture import Bars, Cells
from shared.run_records.rounds import Evaluation
from tests.strata.samples import a_round, a_run

COUNTS = ClassCounts(
    hits=(3, 0, 0), predictions=(5, 1, 0), targets=(4, 0, 2), confusion=((3, 1, 0), (0, 0, 0), (2, 0, 0))
)


def history(counts: ClassCounts, names: tuple[str, ...] = ()) -> RunHistory:
    rows = (a_round(1), a_round(2).replace(evaluation={"global": Evaluation(n=6, by_class=counts)}))
    return RunHistory(a_run(classes=names), rows)


def test_classes_have_their_names_and_what_is_undefined_is_said_not_drawn_as_zero() -> None:
    picture = classes(history(COUNTS, ("cat", "dog", "eel")))
    assert picture is not None
    bars, cells = picture.panels
    assert isinstance(bars, Bars)
    assert isinstance(cells, Cells)
    assert bars.names == ("cat", "eel (never predicted)")  # no sample is a dog
    assert [series.y for series in bars.series] == [(0.75, 0.0), (0.6, None)]
    assert (cells.rows, cells.columns) == (("eel", "cat"), ("cat", "dog", "eel"))
    assert cells.values == ((100.0, None, None), (75.0, 25.0, None))


@pytest.mark.parametrize(("n_classes", "is_drawn"), [(MOST_CLASSES, True), (MOST_CLASSES + 1, False), (1000, False)])
def test_very_many_classes_are_in_the_table_alone(n_classes: int, is_drawn: bool) -> None:
    ones = (1,) * n_classes
    found = classes(history(ClassCounts(hits=ones, predictions=ones, targets=ones)))
    assert (found is not None) is is_drawn


def test_a_run_without_counts_has_no_picture_of_classes() -> None:
    assert classes(RunHistory(a_run(), (a_round(1),))) is None
