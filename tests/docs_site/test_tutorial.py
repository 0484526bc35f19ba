"""The tutorial's commands print what its pages say."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise, zip_longest
from pathlib import Path

import pytest

from docs_site.tutorial import BLOCK, HOW_TO, masked, pages, run_anew, skeleton
from tests.forked_strata import for_shells

NUMBER = re.compile(r"\d+(?:\.\d+)?")
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def test_each_step_has_commands_with_outputs() -> None:
    steps = [text for name, text in pages().items() if name != "tutorial/index.md"]
    assert len(steps) == 6 + len(HOW_TO)
    for text in steps:
        languages = [found["language"] for found in BLOCK.finditer(text)]
        assert "sh" in languages
        assert ("sh", "text") in list(pairwise(languages))
        assert not re.search(r'^```text(?: title="[^"]+")?\n```', text, re.MULTILINE)  # none was never filled


def test_a_repeated_run_has_the_digest_of_the_first() -> None:
    first, second = DIGEST.findall(pages()["tutorial/1-run.md"]), DIGEST.findall(pages()["tutorial/2-read.md"])
    assert len(first) == 1
    assert first == second


def test_what_varies_is_masked() -> None:
    table = "\n".join(("┏━━━━┳━━━━━━━━┓", "┃  n ┃   wall ┃", "┡━━━━╇━━━━━━━━┩", "│  1 │ 0.52 s │", "└────┴────────┘"))
    shorter = table.replace("━" * 8, "━" * 7).replace("─" * 8, "─" * 7).replace("  wall", " wall")
    shorter = shorter.replace("0.52 s", "1.5 s")
    assert masked(table) == masked(shorter)
    assert "│  1 │  ·   │" in masked(table)
    line = "run r20261125-024410-55db at http://127.0.0.1:8000 on a-12424908c0ce, 15.6 s wall, 8.1 s simulated  "
    shown = "run ·········-······-···· at http://127.0.0.1:···· on a-············, · s wall, 8.1 s simulated\n"
    assert masked(line) == shown
    assert masked("logs in /a/b/federation/logs; x") == "logs in ···/federation/logs; x\n"


def test_an_example_is_of_the_same_kind_if_only_its_numbers_differ() -> None:
    assert skeleton("round 1: 24/24\nround 2: 16/24") == skeleton("round 1: 24/24\nround 2: 24/24\nround 3: 8/24")
    assert skeleton(f"model {'ab' * 32}\nlost 1\nleft 2") == skeleton(f"left 3\nlost 4\nmodel {'cd' * 32}")
    assert skeleton("round 1: lost") != skeleton("round 1: left")


@pytest.mark.e2e
@pytest.mark.timeout(1500)
@pytest.mark.skipif(shutil.which("lsof") is None, reason="lsof is not installed")
def test_the_commands_print_what_the_pages_say(tmp_path: Path) -> None:
    """To the last digit where the CPU gives the bits of the machine that made the pages; on another one nearly."""
    shown = pages()
    with for_shells() as strata:
        printed = run_anew(shown, tmp_path, strata)
    digest = DIGEST.search(printed["tutorial/1-run.md"])
    assert digest is not None
    if digest[0] in shown["tutorial/1-run.md"]:
        assert printed == shown
    assert DIGEST.findall(printed["tutorial/2-read.md"]) == [digest[0]]
    for name, text in shown.items():
        for said, found in zip_longest(text.splitlines(), printed[name].splitlines()):
            assert nearly(said, found), (name, said, found)


def nearly(said: str | None, found: str | None) -> bool:
    """Whether two lines have the same words, and numbers that are close."""
    if said is None or found is None:
        return False
    said, found = DIGEST.sub("digest", said), DIGEST.sub("digest", found)
    if [*map(str.split, NUMBER.split(said))] != [*map(str.split, NUMBER.split(found))]:
        return '"cpu"' in said
    pairs = zip(map(float, NUMBER.findall(said)), map(float, NUMBER.findall(found)), strict=True)
    return all(abs(a - b) <= 0.1 * max(a, b) + 3 for a, b in pairs)


def test_lines_are_nearly_equal_if_their_words_are_and_their_numbers_are_close() -> None:
    assert nearly("accuracy  86.91 %", "accuracy 87.2 %")
    assert not nearly("accuracy 86.91 %", "accuracy 57.2 %")
    assert not nearly("accuracy 86.91 %", "loss 86.91 %")
    assert not nearly("accuracy 86.91 %", None)
