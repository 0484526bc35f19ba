"""Texts of other machines on a terminal: nothing in a name, reason, note or message steers it."""

from __future__ import annotations

import io
import json
import sys

import pytest

from shared.core.errors import StrataError
from shared.run_records.visits import VisitRow
from strata import output
from strata.output import Column, FittedTable, Terminal
from strata.runs.progress import LiveView, Told
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud
from tests.strata.samples import a_round, a_run

TITLE, CLEAR = "\x1b]0;owned\x07", "\x1b[2J\x9b2J"
HOSTILE = f"{TITLE}{CLEAR}\r\x7f\u202e\u200b[/bold][link=http://evil.example]x[/link]:smile:"
VISIT = VisitRow(seat=4, edge="edge-1", outcome="failed", reason=HOSTILE, figures={HOSTILE: 1.0})


class FakeTerminal(io.StringIO):
    """A text file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def raw_in(text: str) -> set[str]:
    """Returns the characters, other than line feeds, that cannot be printed."""
    return {character for character in text if not character.isprintable() and character != "\n"}


@pytest.mark.parametrize(
    "command",
    [
        ("ls",), ("show", "r1"), ("show", "r1", "--round", "1"), ("watch", "r1"), ("pause", "r1"), ("agents",),
        ("ls", "--format", "json"), ("show", "r1", "--format", "json"), ("show", "nobody"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_lets_a_text_of_the_cloud_steer_the_terminal(
    strata: Strata, url: str, cloud: FakeCloud, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "missing", (HOSTILE,))
    cloud.runs["r1"] = a_run(name=HOSTILE, algorithm=HOSTILE, status="failed", reason=HOSTILE, notes=(HOSTILE,))
    cloud.rounds = [a_round(1, seats=(VISIT,), phase=HOSTILE, labels={HOSTILE: 1})]
    result = strata(*command, "--url", url)
    shown = result.out + result.err
    assert shown
    assert raw_in(shown) == set()
    if "json" in command:
        found = json.loads(result.out)
        assert (found[0] if isinstance(found, list) else found)["name"] == HOSTILE


def test_markup_and_emoji_codes_are_shown_as_they_are_written() -> None:
    file = FakeTerminal()
    Terminal(file).print(FittedTable([Column("reason", ["[link=http://x]y[/link]"])]), "[red]z[/red] :smile:")
    shown = file.getvalue()
    assert "\x1b]8" not in shown
    assert ":smile:" in shown
    assert "[link=http://x]y[/link]" in shown


def test_the_live_line_and_its_notes_escape_what_cannot_be_printed() -> None:
    file = FakeTerminal()
    with LiveView(Terminal(file)) as view:
        view.show(a_run(name=HOSTILE, status="running", reason=HOSTILE), Told())
        view.say(HOSTILE)
    shown = file.getvalue()
    assert "\\x1b]0;owned" in shown
    assert TITLE not in shown
    assert CLEAR not in shown


def test_errors_are_escaped_but_the_end_of_a_log_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", file)
    output.print_error(StrataError(f"{HOSTILE} ended:\nline one {CLEAR}\nline two"))
    shown = file.getvalue()
    assert TITLE not in shown
    assert CLEAR not in shown
    assert [line for line in shown.splitlines() if "line" in line][-1] == "line two"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_csv_is_escaped_on_a_terminal_and_left_as_it_is_in_a_file(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    file = FakeTerminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    output.print_csv([{"name": HOSTILE, "rounds": 3}])
    assert (raw_in(file.getvalue()) == set()) is is_terminal
    assert (HOSTILE in file.getvalue()) is not is_terminal
    assert file.getvalue().startswith("name,rounds\n")
