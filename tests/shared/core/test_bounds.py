"""Bounds of numbers, texts and figures in reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import Field, ValidationError

from shared.core.bounds import (
    DETAIL_CHARS,
    FIGURES_CHARS,
    LABEL_CHARS,
    MAX_AMOUNT,
    MAX_COUNT,
    MAX_REAL,
    Amount,
    Count,
    Detail,
    Figures,
    Label,
    Real,
    check_figures,
)
from shared.core.records import Record


class Reported(Record):
    count: Count = 0
    amount: Amount = 0.0
    real: Real = 0.0
    detail: Detail = ""
    label: Label = ""
    figures: Figures = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("field", "most", "beyond"),
    [
        ("count", MAX_COUNT, MAX_COUNT + 1),
        ("amount", MAX_AMOUNT, 1e308),
        ("real", -MAX_REAL, -1e308),
        ("figures", {"a": [{"b": MAX_REAL}]}, {"a": [{"b": 1e308}]}),
        ("figures", {"a": 1}, {"a": 10**400}),
        ("figures", {"a": 1.0}, {"a": math.nan}),
        ("figures", {"x" * LABEL_CHARS: 1}, {"x" * (LABEL_CHARS + 1): 1}),
        ("figures", {"a": "x" * (FIGURES_CHARS - 10)}, {"a": "x" * FIGURES_CHARS}),
        ("figures", {"a": [0] * 9}, {"a": [0] * FIGURES_CHARS}),
    ],
)
def test_numbers_beyond_their_bound_are_refused(field: str, most: Any, beyond: Any) -> None:
    assert getattr(Reported(**{field: most}), field) == most
    with pytest.raises(ValidationError):
        Reported(**{field: beyond})


def test_texts_are_cut_where_they_are_made_and_where_they_are_read_and_sums_within_bounds_are_finite() -> None:
    for field, most in (("detail", DETAIL_CHARS), ("label", LABEL_CHARS)):
        cut = "x" * (most - 3) + "..."
        assert getattr(Reported.model_validate({field: "x" * most}), field) == "x" * most
        assert getattr(Reported.model_validate({field: "x" * (most + 1)}), field) == cut
        assert getattr(Reported.model_validate_json(f'{{"{field}": "{"x" * 10**6}"}}'), field) == cut
    assert math.isfinite(MAX_AMOUNT * MAX_COUNT)
    assert math.isfinite(MAX_REAL**2)
    assert check_figures({"a": {"b": ["c", 1, None, True]}}) == {"a": {"b": ["c", 1, None, True]}}
