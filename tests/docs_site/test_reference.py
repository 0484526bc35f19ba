"""The reference pages that are generated from the code: nothing is missing, and each entry says what it means."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from docs_site import codes
from docs_site.bounds import amount, bounds_page
from docs_site.cli import cli_page, commands
from docs_site.codes import codes_page, error_codes, event_kinds
from docs_site.experiments import catalogue_page
from docs_site.names import PLURALS, names_page
from docs_site.settings import COMMAND_LINE, TIERS, settings_page
from docs_site.spec_fields import schema, spec_fields_page
from shared.federation.plugin_checks import KINDS
from shared.federation.registry import ALGORITHMS
from shared.service.metrics import OUTCOMES, REASONS
from shared.service.settings import CommonSettings
from shared.spec import catalogue
from shared.spec.run import RunSpec
from strata.main import app

pytestmark = pytest.mark.integration  # with all files
ROOT = Path(__file__).resolve().parents[2]


def rows(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of the table below a heading, without its head."""
    section = re.split(r"^#+ ", page.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[2:-2].split(" | ")] for line in table[2:]]


# ---- the command line


def words(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield from words(command, f"{before}{name} ") if hasattr(command, "commands") else [f"{before}{name}"]


def test_every_command_has_a_section_with_all_its_options_and_what_they_mean() -> None:
    page = cli_page()
    assert sorted(commands()) == sorted(words(typer.main.get_command(app)))
    assert "certs init" in commands()
    for name, command in commands().items():
        shown = rows(page, f"## strata {name}")
        wanted = [option for each in command.params for option in each.opts if option.startswith("-")]
        assert re.findall(r"`(-[\w-]+)`", " ".join(row[0] for row in shown)) == wanted
        assert [row for row in shown if not row[-1]] == [], name


def test_an_option_is_shown_with_its_values_bounds_and_default() -> None:
    shown = {row[0]: row[1:] for row in rows(cli_page(), "## strata up")}
    assert shown["`--edges`"] == ["number, from 1 to 1000", "`2`", "Number of edges."]
    assert shown["`--format`"][:2] == ["`table`, `json`", "`table`"]
    assert shown["`--secure`"][:2] == ["", ""]
    assert "    strata run [SPEC] [KEY=VALUE...] [OPTIONS]" in cli_page()


# ---- spec fields


def test_every_field_of_a_spec_and_of_its_records_is_listed() -> None:
    page, found = spec_fields_page(), schema()
    assert [row[0] for row in rows(page, "## Spec")] == [f"`{name}`" for name in RunSpec.model_fields]
    for name, record in found["$defs"].items():
        assert [row[0] for row in rows(page, f"## {name}")] == [f"`{field}`" for field in record.get("properties", {})]
    linked = set(re.findall(r"\(#([\w-]+)\)", page))
    assert linked <= {name.lower() for name in found["$defs"]}
    assert "devicespec" in linked


def test_a_field_of_a_spec_has_type_bounds_default_and_meaning() -> None:
    shown = {row[0]: row[1:] for row in rows(spec_fields_page(), "## Spec")}
    assert shown["`edge_rounds`"][:2] == ["integer, from 1 to 1000 or list of integer, from 1 to 1000", "`1`"]
    assert shown["`client`"][:2] == ['`"device"`, `"edge"`', '`"device"`']
    assert "share of a round's tasks" in shown["`quorum`"][2]
    assert "trackers" in shown["`tracking`"][2]


# ---- names


def test_everything_that_a_spec_may_name_is_listed() -> None:
    page = names_page()
    for kind in KINDS:
        title = PLURALS.get(kind.word, f"{kind.word}s").capitalize()
        if kind is ALGORITHMS:
            section = page.partition(f"\n## {title}\n")[2]
            assert re.findall(r"^### (\w+)$", section, re.MULTILINE) == sorted(kind.all())
        else:
            shown = rows(page, f"## {title}")
            assert [row[0] for row in shown] == [f"`{name}`" for name in kind.all()]
            assert [row[0] for row in shown if not row[1]] == []


def test_an_algorithm_is_shown_with_its_paper_and_its_parameters() -> None:
    assert "| `mu` | number, from 0 to 1000 | `0.01` |" in names_page().partition("\n### fedprox\n")[2]
    assert "(algorithms/fedprox.md)." in names_page()


# ---- settings


def test_every_variable_is_listed_with_its_meaning() -> None:
    page = settings_page()
    for title, settings in TIERS.items():
        shown = rows(page, f"## {title}")
        fields = [name for name in settings.model_fields if name not in ("common", "fd")]
        assert [row[0] for row in shown] == [
            f"`{settings.model_config['env_prefix']}{name.upper()}`" for name in fields
        ]
        assert [row[0] for row in shown if not row[-1]] == []
    also = {f"STRATA_{name.upper()}" for name in CommonSettings.also_known}
    assert also == COMMAND_LINE.keys()


def test_a_variable_is_shown_as_it_would_be_set() -> None:
    shown = {row[0]: row[1:] for row in rows(settings_page(), "## Cloud")}
    assert shown["`CLOUD_MAX_RUNS`"][:2] == ["integer, from 1", "`1000`"]
    assert {row[0]: row[2] for row in rows(settings_page(), "## All processes")}["`STRATA_SECURE`"] == "`false`"
    assert {row[0]: row[2] for row in rows(settings_page(), "## Fleet")}["`FLEET_SERVICES`"] == "`device`"


# ---- bounds


def test_a_bound_is_shown_with_its_value_in_a_readable_unit_and_what_comes_after_it() -> None:
    shown = {row[0]: row[1:] for row in rows(bounds_page(), "## Constants")}
    assert shown["the head of a request"] == ["64 KiB", "431", "`HEAD_BYTES` of `shared/service/http_protocol.py`"]
    assert shown["edges of a run"][:2] == ["1,000", "422"]
    assert [what for what, (_, after, _) in shown.items() if not after] == []
    assert [amount(*each) for each in ((4097, "bytes"), (90, "s"), (86400, "s"))] == ["4,097 bytes", "90 s", "24 h"]


def test_every_setting_that_bounds_a_request_is_among_the_bounds() -> None:
    shown = [row[0] for row in rows(bounds_page(), "## Settings")]
    bounding = [row[0] for row in rows(settings_page(), "## Cloud") if re.search(r"_MAX_|_ALLOWED_|_BODY_", row[0])]
    assert len(bounding) > 8
    assert {*bounding} <= {*shown}


# ---- codes


def test_every_code_is_explained() -> None:
    page = codes_page()
    assert [row[0].strip("`") for row in rows(page, "## Outcomes of tasks")] == [n for n in OUTCOMES if n != "other"]
    assert [row[0].strip("`") for row in rows(page, "## Reasons of lost contributions")] == list(REASONS)
    assert {row[0].strip("`") for row in rows(page, "## Errors")} == {code for code, _ in error_codes()}
    assert [cells for cells in re.findall(r"^\| `.*$", page, re.MULTILINE) if cells.endswith("|  |")] == []


def test_the_kinds_of_events_are_read_from_the_code() -> None:
    assert {"run.status", "round.committed", "contribution.lost", "tracking.failed", "node."} <= set(event_kinds())


def test_a_code_without_a_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "EVENTS", {k: v for k, v in codes.EVENTS.items() if k != "run.note"})
    with pytest.raises(ValueError, match=r"event: \['run\.note'\]"):
        codes_page()


# ---- the catalogue


def test_every_experiment_is_in_the_catalogue_with_what_it_shows_and_how_it_is_run() -> None:
    page = catalogue_page()
    names = sorted(path.stem for path in (ROOT / "experiments").glob("*.yaml"))
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == names
    for entry in catalogue.entries():
        assert len(entry.about) > 40, entry.name
        assert any(entry.name in line.split() for line in entry.commands), entry.name
        assert html.unescape(re.sub(r"\[(docs/\S+\.md)\]\(\S+\.md\)", r"\1", page)).count(entry.about) >= 1, entry.name
