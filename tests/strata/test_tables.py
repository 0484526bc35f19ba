"""Tables in terminals of several widths, and the visits of a round."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from shared.core.formatting import duration
from shared.core.scores import Spread
from shared.federation.spec_parser import parse_spec
from shared.run_records.runs import UnreadableRun
from shared.run_records.visits import VisitRow
from shared.simulation.telemetry import Heard
from strata.output import Column, FittedTable, Terminal
from strata.tables import rounds_table, runs_table, twins_table, visits_table
from tests.strata.conftest import Strata
from tests.strata.samples import a_round, a_run, a_twin, put_run

SAMPLE: dict[str, Any] = {"wall_s": 61.0, "simulated_s": 4_000.0, "device_bytes_up": 10**8, "bytes_up": 10**8}
FIGURES = {"accuracy": 0.25, "rho": 145, "sigma": 352, "refusals": 3, "edge_model_bytes": 19_240, "note": "far"}
VISITS = (
    VisitRow(seat=4, edge="edge-1", outcome="refused", reason="rho 145 is above 140.8", label="C", figures=FIGURES),
    VisitRow(seat=7, edge="edge-2", outcome="failed", reason="dropped", simulated_s=0.0634, up_bytes=1320),
)


def lines_of(what: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("table", [rounds_table([a_round(200, **SAMPLE)] * 3), visits_table(VISITS)])
def test_no_cell_is_truncated_or_wrapped_in_any_usual_terminal(table: FittedTable, width: int) -> None:
    lines = lines_of(table, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert len([line for line in lines if line.startswith("│")]) == len(table.columns[0].cells)


@pytest.mark.parametrize("wall_s", [0.1064, 59.96, 86_399.0])
def test_a_file_gets_every_column_of_the_rounds_however_long_they_took(wall_s: float) -> None:
    spread = Spread.of([0.2333, 0.3263, 0.5, 1.0])
    rows = [a_round(200, **SAMPLE | {"wall_s": wall_s, "energy_j": 30.8, "attempts": 2, "clients": {"own": spread}})]
    Terminal(written := io.StringIO()).print(rounds_table(rows))
    assert "energy" in written.getvalue()
    assert "wider terminal" not in written.getvalue()


def test_the_least_important_columns_are_omitted_and_named() -> None:
    columns = [
        Column("seat", ["1"]),
        Column("name\nof it", ["x" * 30], spare=2),
        Column("cost", ["y" * 30], spare=1),
        Column("end", ["z" * 5]),
    ]
    rows = [line for width in (90, 60, 42) for line in lines_of(FittedTable(columns), width) if line.startswith("│")]
    assert [len(cells_of(row)) for row in rows] == [4, 3, 2]
    assert lines_of(FittedTable(columns), 60)[-1] == "in a wider terminal also: name of it"
    assert lines_of(FittedTable(columns), 42)[-1] == "in a wider terminal also: name of it, cost"
    assert "wider" not in lines_of(FittedTable(columns), 90)[-1]


def test_wrappable_words_take_the_width_of_the_longest_only() -> None:
    columns = [Column("differs in", ["margin=literal, phi=0.2, omega=0.4"], fold=True), Column("up", ["1 MB"], spare=1)]
    lines = lines_of(FittedTable(columns), 32)
    assert cells_of(lines[1]) == ["differs in", "up"]
    assert any("margin=literal" in line for line in lines)


def test_a_run_is_shown_with_its_local_objective(strata: Strata, tmp_path: Path) -> None:
    algorithm = {"name": "bofl", "local": {"name": "fedser"}}
    spec = parse_spec({"algorithm": algorithm, "model": {"name": "resnet50", "projection": 256}})
    put_run(tmp_path / "runs" / "r8", [a_round(1)], algorithm="bofl", spec=spec)
    shown = strata("show", "r8").out
    assert re.search(r"^algorithm +bofl, local fedser *$", shown, re.MULTILINE)
    assert re.search(r"^data, model +digits, resnet50, projection 256 *$", shown, re.MULTILINE)


def test_a_rounds_visits_are_shown_with_the_algorithms_figures_of_each(strata: Strata, tmp_path: Path) -> None:
    put_run(tmp_path / "runs" / "r9", [a_round(1), a_round(2, seats=VISITS)])
    lines = strata("show", "r9", "--round", 2).out.splitlines()
    head = next(index for index, line in enumerate(lines) if "┃ device" in line)
    names, first, second = (cells_of(lines[index]) for index in (head, head + 2, head + 3))
    rows = [dict(zip(names, cells, strict=True)) for cells in (first, second)]
    assert rows[0].items() >= {"label": "C", "rho": "145", "sigma": "352", "refusals": "3", "bytes": "19.2 kB"}.items()
    assert rows[0]["reason"] == "rho 145 is above 140.8"
    assert (rows[1]["outcome"], rows[1]["reason"], rows[1]["simulated"]) == ("failed", "dropped", "0.063 s")
    assert "note" not in names
    shown = json.loads(strata("show", "r9", "--round", 2, "--format", "json").out)
    assert [row["seat"] for row in shown["seats"]] == [4, 7]
    assert shown["seats"][0]["figures"] == FIGURES
    refused = strata("show", "r9", "--round", 3)
    assert (refused.code, refused.err.strip()) == (1, f"error: no round 3 in {Path('runs', 'r9')}")


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (None, "-"),
        (0, "0 s"),
        (5.3e-05, "< 1 ms"),
        (0.0634, "0.063 s"),
        (0.5, "0.5 s"),
        (8.31, "8.3 s"),
        (125, "2:05"),
        (3725, "1:02:05"),
    ],
)
def test_seconds_are_printed_so_that_short_ones_differ(seconds: float | None, message: str) -> None:
    assert duration(seconds) == message


def test_a_line_is_drawn_below_the_given_rows() -> None:
    lines = lines_of(FittedTable([Column("lr", ["1", "2", "3"])], lined=frozenset({1})), 80)
    assert [cells_of(line)[0] for line in lines[3:-1]] == ["1", "2", lines[5].strip(), "3"]
    assert lines[5].startswith("├")


def test_a_run_that_cannot_be_read_has_a_line_with_the_reason() -> None:
    lost = UnreadableRun(run="r9", created_at="2026-01-02T03:04:05Z", reason="the document of run r9 [b] is broken")
    text = " ".join(lines_of(runs_table([a_run()], [lost]), 250))
    assert "unreadable (the document of run r9 [b] is broken)" in text
    assert "r1" in text


def test_twins_that_hear_messages_show_their_age_and_what_they_estimated_beside_what_was() -> None:
    exact = a_twin()
    (seen,) = exact.history
    known = seen.replace(telemetry_age_s=3.0, estimated_sps=80.0, actual_sps=40.0)
    by_messages = exact.replace(history=(known,), heard=Heard(since_s=0.0, next=4, n_sent=4))
    assert "telemetry age" not in "\n".join(lines_of(twins_table([exact]), 160))
    text = "\n".join(lines_of(twins_table([by_messages, exact]), 200))
    assert [word in text for word in ("telemetry age", "3.0 s", "80 /s", "40 /s")] == [True] * 4
