"""Changes are made where code runs, and to what it does."""

import pytest

pytest.importorskip("cosmic_ray", reason="`make mutants` installs it")

from tests.mutants.mutations import changed, places

SOURCE = '''\
from __future__ import annotations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal as D

LIMIT = 3


@cached(size=5)
def total(a: int | None, b: float = 2.0, *rest: D | int) -> int | None:
    """Adds 1 and 2."""
    c: int | None = len(rest) + 4
    log.warning("%d of %d", a + b, 7); log_event("sum", n=a + b)
    return a + b + c if a is not None else f"{c + 1} of 6"
'''


def test_annotations_defaults_decorators_and_texts_are_left_alone() -> None:
    found = [(place.operator, place.line, place.function) for place in places(SOURCE)]
    assert sorted(found) == [
        ("AddNot", 15, "total"),
        ("NumberReplacer", 13, "total"),
        ("NumberReplacer", 13, "total"),
        ("ReplaceBinaryOperator_Add_Sub", 13, "total"),
        ("ReplaceBinaryOperator_Add_Sub", 15, "total"),
        ("ReplaceBinaryOperator_Add_Sub", 15, "total"),
        ("ReplaceComparisonOperator_IsNot_Is", 15, "total"),
        ("ReturnNone", 15, "total"),
    ]


@pytest.mark.parametrize(
    ("statement", "becomes"),
    [
        ("return a < b", {"return a <= b", "return None"}),
        ("if a and b: return", {"if a or b: return", "if not a and b: return"}),
        ("await save(\n        a,\n    )", {"pass"}),
        ("self.x = -1", {"self.x = 1", "self.x = - 2", "self.x = - 0"}),
        ("return {**a, 'é': f(*b)}", {"return None"}),
        ("for x in b: g = x", {"for x in []: g = x"}),
        ("return None", set()),
        ("return False", {"return True"}),
    ],
)
def test_each_change_is_one_likely_mistake(statement: str, becomes: set[str]) -> None:
    source = f"async def f(self, a, b):\n    {statement}\n"
    changes = [changed(source, place) for place in places(source)]
    assert {change.becomes for change in changes if change} == becomes
    assert {change.was.split("\n")[0] for change in changes if change} <= {statement.split("\n")[0]}


def test_a_place_knows_its_method_and_the_first_line_of_its_statement() -> None:
    source = "class A:\n    def b(self):\n        return [\n            self.c,\n            1,\n        ]\n"
    (number, _) = (place for place in places(source) if place.operator == "NumberReplacer")
    assert (number.function, number.line, number.statement) == ("A.b", 5, 3)
