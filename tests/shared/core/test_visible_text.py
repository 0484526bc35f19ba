"""Names of runs and labels of visits: what cannot be seen is refused, whatever people write is not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_run_spec
from shared.run_records.visits import VisitRow

UNSEEN = {
    "a line end": ("a\n```\n<img src=http://evil.example>", "U+000A"),
    "an escape sequence": ("a\x1b[2J", "U+001B"),
    "a C1 control": ("a\x9b2J", "U+009B"),
    "delete": ("a\x7f", "U+007F"),
    "a reversed direction": ("exp\u202egnp.sh", "RIGHT-TO-LEFT OVERRIDE"),
    "an isolate": ("\u2066a", "LEFT-TO-RIGHT ISOLATE"),
    "no width": ("a\u200bb", "ZERO WIDTH SPACE"),
    "a paragraph separator": ("a\u2029b", "PARAGRAPH SEPARATOR"),
    "a soft hyphen": ("a\xadb", "SOFT HYPHEN"),
    "only spaces": ("   ", "only spaces"),
}


@pytest.mark.parametrize(("text", "word"), UNSEEN.values(), ids=UNSEEN)
def test_a_name_or_label_that_cannot_be_seen_is_refused_with_its_character(text: str, word: str) -> None:
    with pytest.raises(BadInput, match="name: ") as refused:
        parse_run_spec({"name": text})
    assert refused.value.field == "name"
    assert word in refused.value.detail
    with pytest.raises(ValidationError, match="label"):
        VisitRow(seat=0, edge="edge-1", outcome="used", label=text)


def test_whatever_people_write_is_a_name() -> None:
    names = ["<b>bold</b> & `code`", "実験 1", "été, μ = 0.1", "שלום", "👍 run #3", "a [b](c) {d} $e"]
    assert [parse_run_spec({"name": name}).name for name in names] == names
