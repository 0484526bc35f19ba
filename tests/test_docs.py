"""Examples on the pages work: YAML is (part of) a spec, and commands exist with their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from benchmarks.__main__ import ROWS
from shared.core import parsing
from shared.federation.spec_parser import parse_spec
from shared.simulation.availability import MAX_INTERVALS
from shared.spec import catalogue
from shared.spec.experiment import ExperimentSpec
from strata.main import app
from strata.spec_files import SpecSource, read_spec
from strata.sweeps.grid import combinations_of
from tests.soak.plan import EVERY_CYCLE, SELDOM

pytestmark = pytest.mark.integration  # with all pages
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _found(pattern: str) -> list[tuple[str, str]]:
    """Returns all matches on the pages, each with its page."""
    return [
        (page.relative_to(ROOT).as_posix(), found)
        for page in PAGES
        for found in re.findall(
            pattern, page.read_text(encoding="utf-8").replace("\\\n", " "), re.MULTILINE | re.DOTALL
        )
    ]


BLOCKS = _found(r"^```yaml\n(.*?)^```")
COMMANDS = _found(r"^(?:    )?((?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?strata [^\n]*)")
COMMANDS += [
    (path.name, line.removeprefix("#").strip())
    for path in sorted((ROOT / "experiments").glob("*.yaml"))
    for line in path.read_text(encoding="utf-8").splitlines()
    if re.match(r"#\s+(\w+=\S+ )*strata ", line)
]

WRITTEN = {
    "algorithm=fedavgm",
    "algorithm=clipped",
    "algorithm=damped",
    "data=pumps",
    "model=small_cnn",
    "select=highest_loss",
    "lr_decay=0.9",
}
"""Settings with what the reader adds; `tests/docs_site` runs the code that the pages show."""
STEPS = ("3-hierarchy", "4-stragglers", "5-faults", "6-algorithm")
OWN_FILES = {(f"docs/tutorial/{step}.md", "hierarchy.yaml") for step in STEPS}
OWN_FILES |= {("docs/how-to/new-project.md", "spec.yaml")}
"""Specs that a page lets the reader write; `test_tutorial.py` and `test_wheel.py` run them."""
KNOWN = typer.main.get_command(app).commands  # type: ignore[attr-defined]
TARGETS = _found(r"^    make ([a-z-]+)") + _found(r"`make ([a-z-]+)")


@pytest.mark.parametrize(("page", "target"), sorted(set(TARGETS)))
def test_make_targets_named_by_pages_exist(page: str, target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_yaml_of_a_page_is_part_of_a_spec(page: str, block: str) -> None:
    parse_spec(parsing.load(block, page))


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_of_a_page_exists_with_its_options_and_its_spec_is_valid(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    name, *rest = words[next(n for n, word in enumerate(words) if word.endswith("strata")) + 1 :]
    known = KNOWN[name]
    if hasattr(known, "commands"):  # a group
        known = known.commands[rest.pop(0)]
    options = {option for param in known.params for option in param.opts}
    assert [word for word in rest if word.startswith("--") and word not in options] == []
    if name not in ("run", "sweep") or WRITTEN.intersection(rest) or (page, rest[0]) in OWN_FILES:
        return
    settings = [word for word in rest if "=" in word and not word.startswith("-")]
    spec: SpecSource = {} if rest[0] in settings else rest[0] if rest[0] in catalogue.files() else ROOT / rest[0]
    if name == "sweep":
        assert combinations_of(spec, settings, lambda spec: spec)
    else:
        read_spec(spec, settings)


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_pages_contain_examples() -> None:
    assert len(BLOCKS) >= 4
    assert len(COMMANDS) >= 20


def test_the_page_about_fault_tests_counts_the_kinds_of_faults_of_the_soak() -> None:
    page = (ROOT / "docs" / "fault-tests.md").read_text(encoding="utf-8")
    assert re.findall(r"it injects (\d+) kinds of faults", page) == [str(len({*EVERY_CYCLE, *SELDOM}))]


def test_the_page_about_benchmarks_describes_each_row() -> None:
    table = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").split("| row |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(ROWS)


def test_the_page_about_partitions_names_the_largest_size_of_digit_domains() -> None:
    schema = ExperimentSpec.model_json_schema()["$defs"]["DataSpec"]["properties"]["size"]
    page = (ROOT / "docs" / "partitions.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"`size` pixels a side \(28 by default, 8 to ([\d,]+)\)", page)
    assert int(said.replace(",", "")) == schema["anyOf"][0]["maximum"]


def test_the_page_about_devices_names_the_most_intervals_of_traces() -> None:
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    assert f"at most {MAX_INTERVALS:,} intervals together" in page


# ---- the table of places in docs/where-is.md


def _places() -> list[tuple[str, str]]:
    """Each file and definition that the table names."""
    table = (ROOT / "docs" / "where-is.md").read_text(encoding="utf-8")
    found = re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", table)
    return [(file, name) for file, names in found for name in re.findall(r"\w+", names)]


@pytest.mark.parametrize(("file", "name"), _places())
def test_a_place_named_by_the_page_defines_that_name(file: str, name: str) -> None:
    code = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^\s*((async )?def|class) {name}\b|^{name}\b.* = ", code, re.MULTILINE)


def test_the_page_names_places() -> None:
    assert len(_places()) >= 20
