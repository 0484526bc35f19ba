"""The page of a run in a real browser: counts that add up, the timeline, one switch for all charts, downloads, events.

The run has devices that are too slow for its deadline, and others that drop half of their visits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.formatting import percent
from shared.run_records.visits import ENDS, end_of
from tests.e2e.browser import Visitor
from tests.e2e.test_dashboard import of_name, started
from tests.waits import until

pytestmark = pytest.mark.e2e
N_DEVICES = 30
FLAKY = {"name": "phone_low", "label": "flaky", "drop_rate": 0.5}
SPEC = {
    "name": "stragglers",
    "data": {"name": "digits", "n_train": 300},
    "num_devices": N_DEVICES,
    "num_edges": 2,
    "num_rounds": 3,
    "devices": {
        "profiles": [{"profile": FLAKY, "share": 0.3}, {"profile": "standard", "share": 0.7}],
        "straggler_ratio": 0.2,
        "straggler_slowdown": 1e6,
        "straggler_slows": "compute",
    },
    "round_deadline_s": 1.0,
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    """A topology with a run of stragglers that has ended, and one that was stopped after its first rounds."""
    with started(tmp_path_factory.mktemp("run"), N_DEVICES, 2) as found:
        stopped = {**SPEC, "name": "stopped", "num_rounds": 100_000, "round_deadline_s": None}
        for spec in (SPEC, stopped):
            httpx2.post(f"{found}/runs", json={"spec": spec}, timeout=120).raise_for_status()
        until("the first is over", lambda: of_name(found, "stragglers")["status"] == "completed")
        until("the other has rounds", lambda: of_name(found, "stopped")["rounds"] >= 2)
        httpx2.post(f"{found}/runs/{of_name(found, 'stopped')['run']}/stop", timeout=120).raise_for_status()
        until("it has stopped", lambda: of_name(found, "stopped")["status"] == "stopped")
        yield found


def detail_of(url: str, round_no: int) -> dict[str, Any]:
    run = of_name(url, "stragglers")["run"]
    found: dict[str, Any] = httpx2.get(f"{url}/runs/{run}/rounds/{round_no}", timeout=120).json()
    return found


def opened(visitor: Visitor, name: str = "stragglers") -> Any:
    """The page of a run once its charts are drawn."""
    page = visitor.go(f"/runs/{of_name(visitor.url, name)['run']}")
    until("it is drawn", lambda: len(visitor.charts()) >= 6)
    return page


@pytest.fixture(scope="module")
def shown(chromium: Any, url: str) -> Iterator[Visitor]:
    """A window with the page of the run of stragglers, for tests that leave each other's parts of it alone."""
    visitor = Visitor(chromium, url)
    opened(visitor)
    yield visitor
    assert visitor.complaints == []
    visitor.window.close()


def timeline(visitor: Visitor) -> dict[str, Any]:
    """The options of the timeline's chart, once it is drawn."""
    found: list[dict[str, Any]] = []

    def drawn() -> bool:
        found[:] = [
            chart for chart in visitor.charts() if any(series.get("name") == "download" for series in chart["series"])
        ]
        return len(found) == 1

    until("there is one timeline", drawn)
    return found[0]


def rows(visitor: Visitor) -> list[str]:
    """The devices of the timeline, from top to bottom."""
    return [row for row in timeline(visitor)["yAxis"][0]["data"] if row.startswith("device ")]


def test_the_rounds_table_adds_up_to_the_visits_of_the_api(shown: Visitor, url: str) -> None:
    page = shown.page
    table = page.locator(".q-table").filter(has=page.get_by_role("columnheader", name="tasks"))
    names = shown.columns()
    lines = table.locator("tbody tr").all()
    assert len(lines) == SPEC["num_rounds"]
    for line in lines:
        cells = dict(zip(names, line.locator("td").all_inner_texts(), strict=True))
        detail = detail_of(url, int(cells["round"]))
        found = Counter(end_of(visit["outcome"], visit.get("reason")) for visit in detail["seats"])
        counts = {name: int(cells[name].split()[0]) for name in names if name in ENDS}
        assert {name: n for name, n in counts.items() if n} == dict(found)
        assert sum(counts.values()) == int(cells["tasks"]) == detail["n_visits"] == N_DEVICES
        assert counts["used"] == detail["n_used"]
        assert counts["late"] > 0
        assert counts["dropped"] > 0


def test_the_tab_has_the_name_of_the_run_and_a_stopped_run_its_newest_accuracy(visitor: Visitor, url: str) -> None:
    page = opened(visitor)
    until("the tab is named", lambda: page.title() == "stragglers · StrataFL")
    page = opened(visitor, "stopped")
    info = of_name(url, "stopped")
    found = httpx2.get(f"{url}/runs/{info['run']}/rounds", timeout=120).json()["rounds"]
    newest = [row for row in found if row.get("evaluation")][-1]
    value = info["accuracy"] if info["accuracy"] is not None else newest["evaluation"]["global"]["accuracy"]
    page.locator(".facts").get_by_text(f"{percent(value)} after round {newest['round_no']}", exact=True).wait_for()


def test_the_timeline_shows_every_device_slowest_first_by_choice(visitor: Visitor, url: str) -> None:
    page = opened(visitor)
    detail = detail_of(url, 3)
    first = rows(visitor)
    assert len(first) == 25
    page.get_by_text("Devices 1 to 25 of 30.").wait_for()
    page.get_by_role("button", name="2", exact=True).click()
    until("the second page", lambda: len(rows(visitor)) == 5)
    shown = [(row.split(" · ")[1], int(row.split()[1])) for row in (*first, *rows(visitor))]
    assert shown == sorted(shown), "in the order of numbers"
    assert {seat for _, seat in shown} == {visit["seat"] for visit in detail["seats"]}
    page.get_by_role("switch", name="Slowest first").click()
    page.get_by_role("button", name="1", exact=True).click()
    took = {visit["seat"]: visit["simulated_s"] for visit in detail["seats"]}

    def falls() -> bool:
        found = [took[int(row.split()[1])] for row in rows(visitor)]
        return len(found) == 25 and found == sorted(found, reverse=True)

    until("the slowest device is on top", falls)


def test_a_round_is_chosen_by_step_number_and_row_and_the_button_in_a_row_keeps_its_focus(visitor: Visitor) -> None:
    page = opened(visitor)
    page.get_by_role("button", name="Previous round").click()
    page.get_by_text("round 2, ").wait_for()
    page.get_by_label("Round", exact=True).locator("visible=true").last.fill("1")
    page.get_by_text("round 1, ").wait_for()
    assert page.get_by_role("button", name="Previous round").is_disabled()
    page.get_by_role("button", name="Show round 3").press("Enter")
    page.get_by_text("round 3, ").wait_for()
    chosen = page.get_by_role("button", name="Show round", pressed=True)
    until("its row is marked", lambda: chosen.all_inner_texts() == ["3"])
    assert chosen.evaluate("e => e === document.activeElement")
    assert page.get_by_role("button", name="Next round").is_disabled()
    page.get_by_role("row").filter(has=page.get_by_role("button", name="Show round 2")).get_by_text("train").click()
    page.get_by_text("round 2, ").wait_for()


def test_devices_are_sorted_over_all_pages_and_add_up_to_the_visits_of_the_api(shown: Visitor, url: str) -> None:
    page = shown.page
    table = page.locator(".q-table__container").filter(has=page.get_by_role("columnheader", name="mean task"))
    table.get_by_text(f"1-10 of {N_DEVICES}").wait_for()
    names = shown.columns(2)  # after the rounds and the groups
    visits = [visit for number in (1, 2, 3) for visit in detail_of(url, number)["seats"]]
    took = {seat: [v["simulated_s"] for v in visits if v["seat"] == seat] for seat in range(N_DEVICES)}
    means = {seat: sum(found) / len(found) for seat, found in took.items()}
    head = table.get_by_role("columnheader", name="mean task")
    head.click()
    until("it is sorted", lambda: head.get_attribute("aria-sort") == "ascending")
    head.click()

    def rows_of() -> list[dict[str, str]]:
        lines = table.locator("tbody tr").all()
        return [dict(zip(names, line.locator("td").all_inner_texts(), strict=True)) for line in lines]

    def slowest() -> list[float]:
        return [means[int(row["device"])] for row in rows_of()]

    until("the slowest of all are first", lambda: max(means.values()) in slowest())
    assert slowest() == sorted(slowest(), reverse=True)
    for row in rows_of():
        ends = Counter(end_of(v["outcome"], v.get("reason")) for v in visits if v["seat"] == int(row["device"]))
        assert {name: n for name in names if name in ENDS and (n := int(row[name].split()[0]))} == dict(ends)
    assert any(row["straggler"] for row in rows_of())


def test_the_timeline_marks_ends_deadline_and_what_the_round_waited_for(shown: Visitor, url: str) -> None:
    page = shown.page
    detail = detail_of(url, 3)
    chart = timeline(shown)
    marks = {series["name"]: series["symbol"] for series in chart["series"] if series["type"] == "scatter"}
    assert {"used", "late", "dropped"} <= set(marks)
    assert len(set(marks.values())) == len(marks)
    lines = [line for series in chart["series"] for line in series.get("markLine", {}).get("data", [])]
    named = {line["tooltip"]["formatter"]: line["xAxis"] for line in lines}
    assert {"deadline", "the round ends"} <= set(named)
    factor = 1000 if "(ms)" in chart["xAxis"][0]["name"] else 1
    assert named["the round ends"] == pytest.approx(factor * detail["simulated_s"], rel=1e-4)
    page.get_by_text("The deadline at edge-").wait_for()
    page.get_by_text(f"round 3, {detail['simulated_s']:.4g} s").wait_for()


def test_one_switch_sets_the_axis_of_all_curves(shown: Visitor) -> None:
    page = shown.page

    def axes() -> list[str]:
        charts = [chart for chart in shown.charts() if all(series["type"] == "line" for series in chart["series"])]
        return [chart["xAxis"][0]["name"].partition(" (")[0] for chart in charts]

    n_curves = len(axes())
    assert n_curves >= 4
    assert set(axes()) == {"round"}
    labels = {"simulated time": "simulated time", "bytes": "bytes, all links", "wall-clock time": "wall-clock time"}
    for button, label in labels.items():
        page.get_by_role("button", name=f"by {button}", exact=True).click()
        expected = [label] * n_curves
        until(f"all are by {button}", lambda expected=expected: bool(axes() == expected))  # type: ignore[misc]
    assert all(chart["legend"][0]["show"] for chart in shown.charts() if chart.get("legend"))


def test_report_and_model_are_downloads_of_what_the_run_made(shown: Visitor, url: str, tmp_path: Path) -> None:
    page = shown.page
    run = of_name(url, "stragglers")["run"]
    with page.expect_download() as report:
        page.get_by_role("button", name="Report").click()
    report.value.save_as(tmp_path / "report.html")
    assert report.value.suggested_filename == f"{run}_report.html"
    assert "stragglers" in (tmp_path / "report.html").read_text()
    with page.expect_download() as model:
        page.get_by_role("button", name="Model").click()
    model.value.save_as(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == httpx2.get(
        f"{url}/runs/{run}/files/model.safetensors", timeout=120
    ).content


def test_the_events_of_the_run_say_what_happened_to_whom(shown: Visitor, url: str) -> None:
    page = shown.page
    page.get_by_text("Events", exact=True).click()
    page.get_by_text("The run is completed.").wait_for()
    late = next(visit for visit in detail_of(url, 1)["seats"] if visit.get("reason") == "dropped")
    page.get_by_label("Filter events").fill(f"Round 1: device {late['seat']} ")
    page.get_by_text(f"Round 1: device {late['seat']} at {late['edge']}, dropped").wait_for()


def test_a_comparison_begins_with_figures_and_the_selection_survives_going_back(visitor: Visitor, url: str) -> None:
    page = visitor.go("/runs")
    page.get_by_role("link", name="stragglers").wait_for()
    for box in page.locator("tbody").get_by_role("checkbox").all():
        box.click()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/ui/compare?*")
    until("it is drawn", lambda: len(visitor.charts()) >= 1)
    headings = page.get_by_role("heading", level=2).all_inner_texts()
    assert headings[0] == "Figures"
    assert headings.index("Figures") < headings.index("Parameters that differ")
    assert visitor.columns(1) == ["run", "num_rounds", "round_deadline_s"]
    assert not page.get_by_role("cell", name="batch_size").is_visible()
    page.get_by_text("Parameters that all runs share").click()
    page.get_by_role("cell", name="batch_size", exact=True).wait_for()
    page.get_by_role("button", name="by wall-clock time").click()
    until("it is by wall time", lambda: "wall-clock time" in json.dumps(visitor.charts()[0]["xAxis"]))
    page.go_back()
    page.get_by_role("link", name="stragglers").wait_for()
    selected = page.locator("tbody").get_by_role("checkbox", checked=True)
    until("both are still selected", lambda: selected.count() == 2)
    assert page.get_by_role("button", name="Compare").is_enabled()


def test_the_form_marks_errors_at_their_field_warns_and_offers_examples(visitor: Visitor, url: str) -> None:
    page = visitor.go("/new")
    page.get_by_text("Learning rate of the devices.").wait_for()
    page.get_by_label("num_edges", exact=True).fill("3")
    page.get_by_text("num_edges: 2 edges are connected, 3 wanted").wait_for()
    field = page.get_by_label("lr", exact=True)
    field.fill("-1")
    page.locator(".help.wrong").filter(has_text="must be greater than 0").wait_for()
    until("it is marked", lambda: field.get_attribute("aria-invalid") == "true")
    described_by = field.get_attribute("aria-describedby")
    assert "must be greater than 0" in page.locator(f"#{described_by}").inner_text()
    field.fill("0.5")
    page.locator(".help.wrong").wait_for(state="detached")
    text = page.get_by_label("Spec as YAML")
    text.fill("name: x\nquorum: 2\n")
    quorum = page.get_by_label("quorum", exact=True)
    until("the field with the error is open, and marked", lambda: quorum.get_attribute("aria-invalid") == "true")
    assert quorum.is_visible()
    text.fill("name: x\n")
    page.locator(".help.wrong").wait_for(state="detached")
    choice = page.get_by_label("Start from an example")
    choice.fill("quickstart")
    page.get_by_role("option", name="quickstart").click()
    until("the example is in the text", lambda: "quickstart" in text.input_value())


@pytest.mark.parametrize("width", [390, 1280])
def test_the_form_has_two_columns_where_there_is_room(chromium: Any, url: str, width: int) -> None:
    visitor = Visitor(chromium, url, width)
    page = visitor.go("/new")
    text, field = page.get_by_label("Spec as YAML"), page.get_by_label("seed", exact=True)
    text.wait_for()
    beside = text.bounding_box()["x"] > field.bounding_box()["x"] + field.bounding_box()["width"]
    assert beside is (width == 1280)
    assert not visitor.is_wider_than_its_window()
    visitor.window.close()


def test_a_device_of_the_table_leads_to_its_visits(visitor: Visitor, url: str) -> None:
    page = opened(visitor)
    page.get_by_role("link", name="3", exact=True).click()
    dialog = page.get_by_role("dialog", name="device 3")
    dialog.get_by_role("heading", name="Tasks").wait_for()
    rows = [row["seats"] for row in (detail_of(url, number) for number in (3, 2, 1))]
    newest = next(row for seats in rows for row in seats if row["seat"] == 3)
    cells = dialog.locator("table").first.locator("tbody tr").first.get_by_role("cell").all_inner_texts()
    assert f"{newest['down_s']:.4g} s" in cells
    assert f"{newest['compute_s']:.4g} s" in cells
