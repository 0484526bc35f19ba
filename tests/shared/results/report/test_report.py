"""Reports from made-up results folders: their content, its escaping, and their reproducibility."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import NotFound
from shared.federation.spec_parser import parse_spec
from shared.plots.picture import Picture, Spans
from shared.results.manifest import Manifest
from shared.results.matplotlib_figures import COLUMNS
from shared.results.report import figures as figures_module
from shared.results.report import page as page_module
from shared.results.report.figures import write_pictures
from shared.results.report.page import report
from shared.results.report.svg import inline
from shared.results.report.tables import MAX_ROWS, Table
from shared.results.writer import write_results
from shared.run_records.rounds import EdgeRow
from shared.run_records.visits import FailureInfo, VisitRow
from tests.strata.samples import SPEC, a_round, a_run, some_seats

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """The elements of a page with their attributes, its text, and the cells of each table by its heading."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._cell: list[str] | None = None
        self._caption = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("th", "td", "caption"):
            self._cell = []
        if tag == "tr":
            self.tables.setdefault(self._caption, []).append([])

    def handle_endtag(self, tag: str) -> None:
        if self._cell is None or tag not in ("th", "td", "caption"):
            return
        words, self._cell = "".join(self._cell), None
        if tag == "caption":
            self._caption = words
        else:
            self.tables[self._caption][-1].append(words)

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def column(self, table: str, name: str) -> list[str]:
        head, *rows = self.tables[table]
        return [row[head.index(name)] for row in rows]


def in_folder(folder: Path, details: Any = None, **changes: Any) -> Path:
    info = a_run(run=folder.name, **changes)
    details = [a_round(1), a_round(2, simulated_s=9.0, seats=busy()), a_round(3)] if details is None else details
    write_results(folder, info, details, model=None, manifest=Manifest.of(info), seats=some_seats())
    return folder


def busy() -> tuple[VisitRow, ...]:
    """Returns visits that took time: seat 0 longer than seat 1, which was refused."""
    fast = VisitRow(seat=1, edge="edge-2", outcome="refused", down_s=1.0, compute_s=1.0, up_s=1.0, simulated_s=3.0)
    slow = fast.replace(
        seat=0, edge="edge-1", outcome="used", compute_s=7.0, simulated_s=9.0, energy_j=2.5, up_bytes=50
    )
    return slow, fast


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return in_folder(tmp_path / "r1")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Picture]:
    """Pictures have their titles, but nothing is drawn in them: most of the time of a report goes there."""
    seen: list[Picture] = []

    def noted(picture: Picture, *_: Any) -> bytes:
        seen.append(picture)
        return b'<svg xmlns="http://www.w3.org/2000/svg"/>'

    for name in ("drawn", "drawn_comparison"):
        monkeypatch.setattr(page_module, name, noted)
    monkeypatch.setattr(figures_module, "draw", lambda path, *_: path.write_bytes(b""))
    return seen


@pytest.mark.usefixtures("undrawn")
def test_one_run_with_its_figures_tables_spec_and_manifest(folder: Path) -> None:
    text = report([folder])
    page = Page(text)
    words = " ".join(page.text)
    assert "93.00 % (global model)" in words
    assert page.column("Rounds", "accuracy") == ["91.00 %", "92.00 %", "93.00 %"]
    assert page.column("Edges", "up to cloud") == ["75 B", "75 B"]
    assert page.column("Devices", "refused") == ["0", "1"]
    assert page.column("Devices", "energy") == ["2.5 J", "-"]
    assert page.column("Devices", "samples") == ["30", "12"]
    assert page.column("Failures by reason", "times") == ["3"]
    assert page.column("Failures by reason", "rounds") == ["1, 2, 3"]
    labels = [attrs.get("aria-label") or "" for tag, attrs in page.elements if tag == "svg"]
    for name in ("accuracy", "bytes", "samples of each class", "round 2, the slowest"):
        assert name in " ".join(labels)
    assert SPEC.digest() in words
    assert "num_rounds: 3" in words
    assert json.loads(next(part for part in page.text if part.startswith('{\n  "run"')))["seed"] == 7
    assert "Runs side by side" not in words


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], str]:
    """The folders of two runs, of which one has evil names in all places, and their report with all its pictures."""
    runs = tmp_path_factory.mktemp("runs")
    spec = parse_spec({**SPEC.model_dump(mode="json"), "name": EVIL})
    failure = FailureInfo(seat=1, edge=EVIL, reason=EVIL, detail=EVIL)
    visit = VisitRow(seat=0, edge=EVIL, outcome=EVIL, profile=EVIL, label=EVIL, simulated_s=1.0, compute_s=1.0)
    rows = (EdgeRow(edge=EVIL, home=0, outcome=EVIL, reason=EVIL, simulated_s=1.0),)
    rounds = [a_round(1, failures=(failure,), seats=(visit,), edges=rows, phase=EVIL)]
    changes = {"name": EVIL, "spec": spec, "reason": EVIL, "notes": (EVIL,), "accuracy_of": EVIL}
    folders = [in_folder(runs / "r1"), in_folder(runs / "r2", rounds, **changes)]
    return folders, report(folders)


@pytest.mark.slow
def test_the_same_folders_give_the_same_bytes(compared: tuple[list[Path], str]) -> None:
    folders, text = compared
    assert report(folders) == text


@pytest.mark.usefixtures("undrawn")
def test_several_runs_are_compared_first(tmp_path: Path, folder: Path) -> None:
    other = in_folder(tmp_path / "r2", spec=parse_spec({**SPEC.model_dump(mode="json"), "lr": 0.5}))
    page = Page(report([folder, other], target=0.92))
    assert next(iter(page.tables)) == "Runs side by side"
    assert page.column("Runs side by side", "differs in") == ["lr=0.05", "lr=0.5"]
    assert page.column("Runs side by side", "rounds to 92.00 %") == ["2", "2"]
    assert "accuracy of all runs by rounds, simulated time and bytes" in [a.get("aria-label") for _, a in page.elements]


@pytest.mark.integration
def test_texts_of_users_are_escaped(compared: tuple[list[Path], str]) -> None:
    page = Page(compared[1])
    assert {tag for tag, _ in page.elements} & {"script", "iframe", "object", "embed", "form"} == set()
    attributes = [(name, value or "") for _, attrs in page.elements for name, value in attrs.items()]
    assert [name for name, _ in attributes if name.startswith("on")] == []
    assert [tag for tag, attrs in page.elements if tag == "img" and attrs.get("src") == "x"] == []
    assert "".join(page.text).count(EVIL) >= 8


@pytest.mark.integration
def test_a_report_loads_nothing_from_the_network_and_its_ids_are_unique(compared: tuple[list[Path], str]) -> None:
    _, text = compared
    page = Page(text)
    links = [attrs[name] or "" for _, attrs in page.elements for name in ("src", "href", "xlink:href") if name in attrs]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert re.findall(r"url\((?!#)|@import|@font-face", text) == []
    assert "default-src 'none'" in text
    ids = [attrs["id"] or "" for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


@pytest.mark.usefixtures("undrawn")
def test_the_timeline_shows_the_requested_round(folder: Path) -> None:
    with pytest.raises(NotFound, match="no round 7"):
        report([folder], round_no=7)
    assert "round 2, the slowest" in report([folder], round_no=2)
    assert "timeline of" not in report([folder], round_no=1)  # in which all times are 0


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_asynchronous_tiers_has_versions_and_their_staleness(tmp_path: Path) -> None:
    slow, fast = busy()
    rounds = [
        a_round(1, simulated_s=9.0, seats=(slow.replace(staleness_s=9.0),)),
        a_round(2, seats=(fast.replace(outcome="used", begin_s=-2.0, staleness=1, staleness_s=3.0),)),
        a_round(3, seats=(fast.replace(outcome="used", staleness=4, staleness_s=3.0),)),
    ]
    edge = edges(n_used=1)[0]
    late = [row.replace(edges=(edge.replace(staleness=n, staleness_s=2.0),)) for n, row in enumerate(rounds)]
    spec = parse_spec({"sync": {"devices": "asynchronous"}})
    page = Page(text := report([in_folder(tmp_path / "r1", late, spec=spec)]))
    assert page.column("Devices", "staleness") == ["0.0, at most 0", "2.5, at most 4"]
    assert page.column("Rounds of edges", "staleness") == ["1.0, at most 2"]
    assert "timeline of version 1, the slowest" in text
    plain = Page(report([in_folder(tmp_path / "r2")]))
    assert not any("staleness" in head for head, *_ in plain.tables.values())


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_a_round_has_a_page(tmp_path: Path) -> None:
    words = " ".join(Page(report([in_folder(tmp_path / "r1", [], rounds=0, accuracy=None, status="failed")])).text)
    assert "No figures before the first round." not in words  # the partition is known
    assert "failed" in words


@pytest.mark.usefixtures("undrawn")
def test_lost_contributions_are_shown_in_the_form_of_a_spec(tmp_path: Path) -> None:
    off = FailureInfo(seat=0, reason="unavailable", detail="off")
    gone = FailureInfo(edge="edge-2", seats=(3, 1), reason="lost", detail="silent")
    rounds = [a_round(1, failures=(off,)), a_round(2, failures=(off, gone))]
    text = "".join(Page(report([in_folder(tmp_path / "r1", rounds)])).text)
    assert "losses:\n- round_no: 2\n  seats: [1, 3]" in text
    assert "Faults lost contributions" not in "".join(Page(report([in_folder(tmp_path / "r2", rounds[:1])])).text)


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_an_earlier_version_shows_its_drawn_partition(folder: Path) -> None:
    (folder / "plots").mkdir()
    write_pictures(folder, folder / "plots", "png", COLUMNS["double"])
    (folder / "seats.ndjson").unlink()
    page = Page(report([folder]))
    assert [attrs["alt"] for tag, attrs in page.elements if tag == "img"] == ["small: samples of each class by device"]


def edges(**changes: Any) -> tuple[EdgeRow, ...]:
    """Returns two edges: the first was used and timed, the second has the given fields."""
    first = EdgeRow(edge="edge-1", home=0, outcome="used", n_used=2, down_s=0.5, up_s=1.0, simulated_s=9.0)
    return first, EdgeRow.model_validate({"edge": "edge-2", "home": 1, "outcome": "used", **changes})


def edges_of_timeline(pictures: list[Picture]) -> list[str]:
    """The rows of edges in the timeline among these pictures."""
    ((panel,),) = (picture.panels for picture in pictures if isinstance(picture.panels[0], Spans))
    assert isinstance(panel, Spans)
    return [row for row in panel.rows if row.endswith(" and cloud")]


def test_edges_have_a_table_of_their_rounds_and_marks_in_the_timeline(tmp_path: Path, undrawn: list[Picture]) -> None:
    rounds = [
        a_round(1, edges=edges(outcome="failed", reason="timeout")),
        a_round(2, simulated_s=9.0, seats=busy(), edges=edges(n_used=1, own_accuracy=0.5, up_s=1.0, simulated_s=4.0)),
        a_round(3, edges=edges(outcome="away", reason="lost")),
        a_round(3, kind="evaluate", edges=edges(n_used=9, own_accuracy=0.75)),
    ]
    text = report([in_folder(tmp_path / "r1", rounds)])
    page = Page(text)
    assert page.column("Rounds of edges", "edge") == ["edge-1", "edge-2"]
    ends = {name: page.column("Rounds of edges", name) for name in ("used", "failed", "away")}
    assert ends == {"used": ["3", "1"], "failed": ["0", "1"], "away": ["0", "1"]}
    assert page.column("Rounds of edges", "reasons") == ["-", "lost 1, timeout 1"]
    assert page.column("Rounds of edges", "updates") == ["6", "1"]
    assert page.column("Rounds of edges", "own") == ["-", "75.00 %"]
    seconds = [page.column("Rounds of edges", name)[0] for name in ("download", "upload", "simulated")]
    assert seconds == ["1.5 s", "3.0 s", "27.0 s"]
    assert edges_of_timeline(undrawn) == ["edge-1 and cloud", "edge-2 and cloud"]


def test_a_timeline_of_the_slowest_seats_marks_only_their_edges(tmp_path: Path, undrawn: list[Picture]) -> None:
    slow, fast = busy()
    seats = (*(slow.replace(seat=n) for n in range(2, 122)), fast.replace(seat=1))
    both = a_round(1, seats=seats, edges=edges(simulated_s=4.0))
    text = report([in_folder(tmp_path / "r1", [both])])
    assert "the 120 of 121 devices whose tasks took the longest" in text
    assert edges_of_timeline(undrawn) == ["edge-1 and cloud"]


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_an_earlier_version_has_no_rounds_of_edges_and_says_so(tmp_path: Path, folder: Path) -> None:
    (folder / "edges.ndjson").unlink()
    text = report([folder])
    assert "has no record of edges (edges.ndjson): an earlier version of StrataFL wrote it" in text
    assert text == report([folder])
    assert "an earlier version" not in report([in_folder(tmp_path / "r0", [], rounds=0)])
    part = in_folder(tmp_path / "r2")
    lines = (part / "edges.ndjson").read_bytes().splitlines(keepends=True)
    (part / "edges.ndjson").write_bytes(b"".join(lines[-2:]))
    assert "Not recorded: rounds 1, 2" in report([part])


@pytest.mark.usefixtures("undrawn")
def test_an_invalid_line_is_named(folder: Path) -> None:
    with (folder / "devices.ndjson").open("ab") as file:
        file.write(b'{"round_no":3,"kind":"train"}\n')
    with pytest.raises(NotFound, match=r"devices\.ndjson, line 9"):
        report([folder])


def test_a_table_shows_a_limited_number_of_lines_and_their_total() -> None:
    table = Table("Devices", ["seat"], [[str(n)] for n in range(MAX_ROWS + 5)])
    assert len(table.shown) == MAX_ROWS
    assert not table.is_open


def test_a_picture_in_a_page_has_the_pages_colour_and_unique_ids() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt">'
        '<metadata>when</metadata><g id="unused"><path id="m1" style="fill: #ffffff; stroke: #000000"/></g>'
        '<use xlink:href="#m1" clip-path="url(#m1)"/><text style="fill: #ffffff">a &lt;b&gt;</text></svg>'
    )
    found = inline(svg.encode(), "r1-", 'so "it" is')
    assert "when" not in found
    assert "unused" not in found
    assert '<path style="fill: none; stroke: currentColor" id="r1-m1"' in found
    assert 'xlink:href="#r1-m1" clip-path="url(#r1-m1)"' in found
    assert '<text style="fill: #ffffff">a &lt;b&gt;</text>' in found
    assert 'aria-label="so &quot;it&quot; is"' in found


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.matrix
@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF-")])
def test_pictures_are_written_to_files_for_a_paper(folder: Path, tmp_path: Path, form: str, begins: bytes) -> None:
    paths = write_pictures(folder, tmp_path / "out", form, COLUMNS["single"])
    assert {path.stem for path in paths} >= {"accuracy", "bytes", "partition", "timeline"}
    assert all(path.read_bytes().startswith(begins) for path in paths)
    if form == "png":
        from PIL import Image

        with Image.open(tmp_path / "out" / "accuracy.png") as image:
            assert image.width == round(3.5 * 300)
            assert round(image.info["dpi"][0]) == 300
    if form == "pdf":
        assert b"/Subtype /Type3" not in (tmp_path / "out" / "accuracy.pdf").read_bytes()
