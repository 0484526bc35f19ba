"""The animated picture of a terminal: its times, its drawing, and the private data that it must not contain."""

from __future__ import annotations

import re
import socket
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs_site.cast import (
    COLUMNS,
    FIRST_S,
    HOST,
    LAST_S,
    PLAY_S,
    ROWS,
    WAIT_S,
    Letter,
    Screen,
    drawn,
    paced,
    private,
    screens,
    short_waits,
)

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "cast.svg"
MOST_BYTES, MOST_S = 400_000, 25.0
FOLDER = re.compile(r"(?<![\w.])/(?:home|root|tmp|Users|var|mnt|srv)\b")
SVG = "{http://www.w3.org/2000/svg}"


def screen(*lines: str, colour: str = "default") -> Screen:
    filled = [*lines, *[""] * (ROWS - len(lines))]
    return tuple(tuple(Letter(letter, colour) for letter in line.ljust(COLUMNS)) for line in filled)


# ---- times


def test_a_wait_is_shortened_spinners_are_ignored_and_later_output_comes_earlier() -> None:
    spins = [(0.5 * step, screen(f"{'⠋⠙⠹'[step % 3]} starting")) for step in range(21)]
    after = [(10.5, screen("running")), (11.5, screen("done"))]
    cut = short_waits([*spins, *after])
    assert [at for at, _ in cut[:5]] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert cut[len(spins) - 1][0] == WAIT_S
    assert [at for at, _ in cut[-2:]] == [WAIT_S, WAIT_S + 1.0]
    assert [shown for _, shown in cut] == [shown for _, shown in [*spins, *after]]


def test_a_run_without_long_waits_keeps_its_times() -> None:
    timed = [(0.7 * number, screen(str(number))) for number in range(9)]
    assert short_waits(timed) == timed


def test_a_long_run_is_played_faster_and_a_short_one_in_real_time() -> None:
    long, faster = paced([(float(number), screen(str(number))) for number in range(29)])
    assert faster == 28 / PLAY_S
    assert sum(length for _, length in long) == pytest.approx(PLAY_S + LAST_S + FIRST_S - 1 / faster)
    short, faster = paced([(0.0, screen("a")), (1.0, screen("b")), (3.0, screen("b")), (4.0, screen("c"))])
    assert faster == 1
    assert [length for _, length in short] == pytest.approx([FIRST_S, 3.0, LAST_S])


# ---- drawing


def test_a_picture_shows_each_screen_at_its_time_and_stores_each_row_once() -> None:
    one, two = screen("same", "a < b & c", colour="green"), screen("same", "two   words", colour="green")
    root = ET.fromstring(drawn([(one, 1.0), (two, 3.0)], "x"))  # noqa: S314 - just made
    words = ["".join(text.itertext()) for text in root.findall(f"{SVG}defs//{SVG}text")]
    assert words == ["same", "a < b & c", "two", "words"]
    strips = root.findall(f".//{SVG}g[@class='play']/{SVG}g")
    assert [[use.get("href") for use in strip] for strip in strips] == [["#r0", "#r1"], ["#r0", "#r2"]]
    style = root.findtext(f"{SVG}style") or ""
    assert re.findall(r"([\d.]+)%\{", style) == ["0.000", "25.000"]
    assert "play 4.00s steps(1,end) infinite" in style


def test_a_terminals_output_is_drawn_with_its_colours() -> None:
    pytest.importorskip("pyte", reason="pyte is not installed: `make cast` installs it")
    (_, first), (_, last) = screens(
        [(0.0, "o", "\x1b[32mgo\x1b[0m"), (1.0, "o", "\r\x1b[2K\x1b[2mfaint\x1b[0m \x1b[1mB")]
    )
    assert first[0][:3] == (Letter("g", "green"), Letter("o", "green"), Letter(" "))
    assert "".join(letter.data for letter in last[0]).rstrip() == "faint B"
    assert (last[0][0].colour, last[0][6].bold) == ("brightblack", True)


# ---- private data


@pytest.mark.parametrize("word", [socket.gethostname(), str(Path.home()), str(Path.cwd()), "https://example.org/x"])
def test_a_picture_that_names_the_machine_is_refused(word: str) -> None:
    shown = [(screen("results: runs/r1 at http://127.0.0.1:8000"), 1.0)]
    assert private(drawn(shown, "x")) == []
    assert word in private(drawn([(screen(f"at {word}"), 1.0)], "x"))


def test_the_picture_of_the_pages_is_small_short_and_of_a_run_that_was_completed() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert HOST.findall(text) == FOLDER.findall(text) == []
    root = ET.fromstring(text)  # noqa: S314 - our own file
    seconds = float(re.findall(r"play ([\d.]+)s", root.findtext(f"{SVG}style") or "")[0])
    assert FIRST_S + LAST_S < seconds <= MOST_S
    words = {"".join(each.itertext()) for each in root.iter(f"{SVG}text")}
    assert {"completed", "accuracy"} <= words
    assert not list(root.iter(f"{SVG}script"))
