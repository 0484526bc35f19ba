"""What visitors of the dashboard enter, click and see: wrong inputs, links, sorted tables, dark mode, hostile names."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.browser import Visitor
from tests.e2e.test_dashboard import runs_of, started, wait_completed
from tests.e2e.test_scaling import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
HOSTILE = "a ``` <style>*{display:none}</style> <img src=http://evil.example/x> {{ 7*6 }} {a}"
SPEC = {"data": {"name": "digits", "n_train": 300}, "num_devices": 4}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    """A topology with a run of 10 rounds and a hostile name, and one of 9 rounds with a larger model, both over."""
    process, found = started(tmp_path_factory.mktemp("inputs"))
    for further in ({"name": HOSTILE, "num_rounds": 10}, {"name": "nine", "num_rounds": 9}):
        httpx.post(f"{found}/runs", json={"spec": {**SPEC, **further}}, timeout=30).raise_for_status()
    until("both are over", lambda: {run["status"] for run in runs_of(found)} == {"completed"})
    yield found
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def wanted_devices(url: str) -> dict[str, int]:
    wanted: dict[str, int] = httpx.get(f"{url}/topology", timeout=30).json()["wanted"]
    return wanted


def test_the_root_leads_to_the_dashboard_whose_pages_load_nothing_of_other_sites(visitor: Visitor) -> None:
    answer = visitor.page.goto(f"{visitor.url}/")
    visitor.page.wait_for_url("**/ui/")
    visitor.page.get_by_role("heading", name="2 edges, 4 devices").wait_for()
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


def test_every_link_of_every_page_leads_to_a_page(visitor: Visitor) -> None:
    ids = [run["run"] for run in runs_of(visitor.url)]
    links: set[str] = set()
    for path in ("/", "/runs", "/new", f"/runs/{ids[0]}", f"/compare?run={ids[0]}", "/compare"):
        page = visitor.go(path)
        if path == "/":
            page.get_by_role("link", name="completed").wait_for()
        if path == "/runs":
            page.get_by_role("link", name="nine").wait_for()
        links |= set(page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"))
    assert {f"{visitor.url}/ui/runs/{run}" for run in ids} <= links
    for link in links:
        answer = visitor.page.goto(link)
        assert answer.status == 200, link
        visitor.page.get_by_role("heading", level=1).wait_for()


def test_markup_in_a_name_is_shown_as_text_everywhere(visitor: Visitor) -> None:
    (run,) = (run["run"] for run in runs_of(visitor.url) if run["name"] == HOSTILE)
    page = visitor.go(f"/runs/{run}")
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.get_by_text("Spec", exact=True).click()
    page.get_by_text(f"name: '{HOSTILE}'").or_(page.get_by_text(f"name: {HOSTILE}")).wait_for()
    page = visitor.go("/runs")
    page.get_by_role("link", name=HOSTILE).wait_for()
    assert page.locator("img[src*=evil]").count() == 0


@pytest.mark.parametrize("entered", ["-4", "", "2.5", "1000001"])
def test_scale_refuses_what_is_no_number_of_devices(visitor: Visitor, url: str, entered: str) -> None:
    page = visitor.go("/")
    devices = page.get_by_label("Devices")
    until("the number is there", lambda: devices.input_value() == "4")
    devices.fill(entered)
    page.wait_for_timeout(1500)  # the page refreshes once a second, and leaves what was entered
    assert devices.input_value() == entered
    page.get_by_role("button", name="Scale").click()
    page.get_by_text("Devices: a whole number from 0 to 1,000,000 is needed").wait_for()
    assert set(wanted_devices(url).values()) <= {4}


@pytest.mark.parametrize("entered", ["-1", "", "0"])
def test_no_wrong_number_of_rounds_is_added(visitor: Visitor, url: str, entered: str) -> None:
    run = runs_of(url)[0]
    page = visitor.go(f"/runs/{run['run']}")
    page.get_by_label("More rounds").fill(entered)
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("More rounds: a whole number from 1").wait_for()
    assert runs_of(url)[0]["num_rounds"] == run["num_rounds"]


@pytest.mark.parametrize(
    ("field", "entered"), [("data", "{name: digits,"), ("num_rounds", ""), ("num_edges", "1e"), ("name", "a\u200bb")]
)
def test_start_refuses_while_a_field_is_invalid(visitor: Visitor, url: str, field: str, entered: str) -> None:
    n_runs = len(runs_of(url))
    page = visitor.go("/new")
    page.get_by_label(field, exact=True).first.click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.type(entered)
    page.get_by_label("seed", exact=True).fill("5")  # a valid field after it must not hide the error
    until("the seed is in the text", lambda: "seed: 5" in page.get_by_label("Spec as YAML").input_value())
    page.get_by_role("alert").filter(has_text=field).wait_for()
    page.get_by_role("button", name="Start").click()
    page.locator(".q-notification").filter(has_text=field).wait_for()
    assert page.url.endswith("/ui/new")
    assert len(runs_of(url)) == n_runs


def test_a_form_field_does_not_overwrite_a_text_with_an_error(visitor: Visitor, url: str) -> None:
    n_runs = len(runs_of(url))
    page = visitor.go("/new")
    text = page.get_by_label("Spec as YAML")
    text.fill("name: mine\nlr: -1\n")
    page.get_by_label("seed", exact=True).fill("5")
    page.get_by_role("alert").filter(has_text="lr").wait_for()
    page.get_by_role("button", name="Start").click()
    page.locator(".q-notification").wait_for()
    assert text.input_value() == "name: mine\nlr: -1\n"
    text.fill("name: mine\nlr: 0.5\n")
    text.blur()
    until("the form has the text's values", lambda: page.get_by_label("lr", exact=True).input_value() == "0.5")
    assert page.get_by_label("seed", exact=True).input_value() == "0"
    assert len(runs_of(url)) == n_runs


def test_dark_mode_keeps_an_edited_spec_and_redraws_charts(visitor: Visitor, url: str) -> None:
    page = visitor.go("/new")
    text = page.get_by_label("Spec as YAML")
    text.fill("name: half writ")
    page.get_by_label("Switch between light and dark").click()
    page.wait_for_function("document.body.classList.contains('body--dark')")
    assert text.input_value() == "name: half writ"
    page = visitor.go(f"/runs/{runs_of(url)[0]['run']}")
    page.wait_for_function("document.body.classList.contains('body--dark')")

    def colours() -> set[str]:
        return {json.dumps(chart["textStyle"]["color"]) for chart in visitor.charts()}

    until("charts are dark", lambda: colours() == {'"#dddddd"'})
    page.get_by_label("Switch between light and dark").click()
    until("charts are light", lambda: colours() == {'"#333333"'})


def column(page: Any, number: int) -> list[str]:
    found: list[str] = page.locator(f"tbody tr td:nth-child({number})").all_inner_texts()
    return found


def test_numbers_sort_by_value(visitor: Visitor, url: str) -> None:
    page = visitor.go("/runs")
    page.get_by_role("link", name="nine").wait_for()
    page.get_by_role("columnheader", name="rounds", exact=True).click()
    until("ascending", lambda: column(page, 5) == ["9/9", "10/10"])
    page.get_by_role("columnheader", name="rounds", exact=True).click()
    until("descending", lambda: column(page, 5) == ["10/10", "9/9"])
    (ten,) = (run["run"] for run in runs_of(url) if run["rounds"] == 10)
    page = visitor.go(f"/runs/{ten}")
    wait_completed(visitor)
    page.get_by_role("columnheader", name="score", exact=True).click()
    place = visitor.columns().index("score") + 1
    until("by accuracy", lambda: len(set(column(page, place))) > 1 and _is_sorted(column(page, place)))


def _is_sorted(cells: list[str]) -> bool:
    values = [float(cell.partition("%")[0]) for cell in cells]
    return values == sorted(values)
