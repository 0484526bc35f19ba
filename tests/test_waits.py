"""The wait of all tests ends with a value or with an error that says what it waited for."""

from __future__ import annotations

import pytest

from shared.core.errors import NotReady
from tests.waits import Hang, until


def test_the_first_true_value_is_returned() -> None:
    values = iter([None, False, 0, "there", "later"])
    assert until("a value", lambda: next(values), every_s=0) == "there"
    assert next(values) == "later"


def test_a_wait_that_lasts_too_long_fails_and_names_what_it_waited_for() -> None:
    def look() -> bool:
        raise NotReady("no edge yet")

    with pytest.raises(Hang, match=r"waited 0 s for the edge; seen last: no edge yet"):
        until("the edge", look, limit_s=0, every_s=0)
    with pytest.raises(Hang, match="seen last: nothing"):
        until("the edge", lambda: False, limit_s=0, every_s=0)
