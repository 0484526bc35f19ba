"""What visitors of the dashboard enter, click and see: wrong inputs, links, sorted tables, dark mode, hostile names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.browser import Visitor
from tests.e2e.test_dashboard import runs_of, started, wait_completed
from tests.waits import PACED, until

pytestmark = pytest.mark.e2e
HOSTILE = "a ``` <style>*{display:none}</style> <img src=http://evil.example/x> {{ 7*6 }} {a}"
SPEC = {"data": {"name": "digits", "n_train": 300}, "num_devices": 4}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    """A topology with a run of 10 rounds and a hostile name, and one of 9 rounds with a larger model, both over."""
    with started(tmp_path_factory.mktemp("inputs")) as found:
        for further in ({"name": HOSTILE, "num_rounds": 10}, {"name": "nine", "num_rounds": 9}):
            httpx2.post(f"{found}/runs", json={"spec": {**SPEC, **further}}, timeout=120).raise_for_status()
        until("both are over", lambda: {run["status"] for run in runs_of(found)} == {"completed"})
        yield found


def wanted_devices(url: str) -> dict[str, int]:
    wanted: dict[str, int] = httpx2.get(f"{url}/topology", timeout=120).json()["wanted"]
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


def test_scale_refuses_what_is_no_number_of_devices(visitor: Visitor, url: str) -> None:
    page = visitor.go("/")
    devices = page.get_by_label("Devices")
    until("the number is there", lambda: devices.input_value() == "4")
    agent = httpx2.get(f"{url}/agents", timeout=120).json()["agents"][0]["agent"]
    refusal = page.get_by_text("Devices: a whole number from 0 to 1,000,000 is needed")
    for entered in ("-4", "", "2.5", "1000001"):
        devices.fill(entered)
        for online, shown in ((False, 1), (True, 0)):  # the page refreshes, and leaves what was entered
            httpx2.patch(f"{url}/agents/{agent}", json={"online": online}, timeout=120).raise_for_status()
            page.get_by_role("button", name=f"offline {shown}").wait_for()
            assert devices.input_value() == entered
        page.get_by_role("button", name="Scale").click()
        refusal.wait_for()
        colour = "e => getComputedStyle(e).color"
        texts = (".q-notification__message", ".q-notification .q-btn")
        assert len({page.locator(each).evaluate(colour) for each in texts}) == 1  # one that is read on the toast
        page.locator(".q-notification .q-btn").click()
        refusal.wait_for(state="detached")
    assert set(wanted_devices(url).values()) <= {4}


def test_no_wrong_number_of_rounds_is_added(visitor: Visitor, url: str) -> None:
    run = runs_of(url)[0]
    page = visitor.go(f"/runs/{run['run']}")
    refusal = page.get_by_text("More rounds: a whole number from 1")
    for entered in ("-1", "", "0"):
        page.get_by_label("More rounds").fill(entered)
        page.get_by_role("button", name="Add", exact=True).click()
        refusal.wait_for()
        page.locator(".q-notification .q-btn").click()
        refusal.wait_for(state="detached")
    assert runs_of(url)[0]["num_rounds"] == run["num_rounds"]


def text_of(page: Any) -> str:
    """The text of the spec."""
    return str(page.get_by_label("Spec as YAML").input_value())


def wait_for_text(page: Any, part: str) -> None:
    """Waits until the spec has a text."""
    until(f"{part} is in the text", lambda: part in text_of(page))


def press_keys(page: Any, field: str, keys: str, pause_ms: int) -> Any:
    """Replaces what is in a field, key by key; returns the field."""
    found = page.get_by_label(field, exact=True).first
    found.click()
    page.keyboard.press("Control+A")
    page.keyboard.type(keys, delay=pause_ms)
    return found


@pytest.mark.parametrize("pause_ms", [0, 300])
def test_a_number_stays_as_it_is_typed(visitor: Visitor, pause_ms: int) -> None:
    page = visitor.go("/new")
    page.get_by_text("All other fields").click()
    for field, keys, in_the_text in (
        ("lr", "0.1", "lr: 0.1\n"),
        ("lr", "0.002", "lr: 0.002\n"),
        ("lr", "-0.1", "lr: -0.1\n"),
        ("lr", "1e-3", "lr: 0.001\n"),
        ("lr", "12", "lr: 12.0\n"),
        ("momentum", "0.05", "momentum: 0.05\n"),
        ("fraction_candidates", "0.10", "fraction_candidates: 0.1\n"),
        ("num_devices", "1024", "num_devices: 1024\n"),
    ):
        found = press_keys(page, field, keys, pause_ms)
        wait_for_text(page, in_the_text)
        assert found.input_value() == keys
        found.blur()
        page.get_by_label("name", exact=True).first.fill(f"after {keys}")
        wait_for_text(page, f"after {keys}")  # the page has answered what came before
        assert found.input_value() == keys
        assert in_the_text in text_of(page)


def test_enter_takes_the_choice_that_matches_what_is_typed(visitor: Visitor) -> None:
    page = visitor.go("/new")
    for keys, name in (("fedprox", "fedprox"), ("es_", "es_afl"), ("fedavg", "fedavg")):
        for pause_ms in (0, 100):
            press_keys(page, "algorithm", keys, pause_ms)
            page.keyboard.press("Enter")
            wait_for_text(page, f"name: {name}\n")
            assert page.get_by_label("algorithm", exact=True).input_value() == name
            press_keys(page, "algorithm", "fedmix", 0)
            page.keyboard.press("Enter")
            wait_for_text(page, "name: fedmix\n")
    press_keys(page, "Start from an example", "quick", 100)
    page.keyboard.press("Enter")
    wait_for_text(page, "name: quickstart\n")


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
    wait_for_text(page, "seed: 5")
    page.get_by_role("alert").filter(has_text=field).wait_for()
    check_start_is_refused(page, field)
    page.get_by_label("seed", exact=True).fill("6")
    wait_for_text(page, "seed: 6")  # the click before it has been answered
    assert page.url.endswith("/ui/new")
    assert len(runs_of(url)) == n_runs


def check_start_is_refused(page: Any, reason: str) -> None:
    """Start looks as if it were disabled, and says why; a click does nothing."""
    start = page.get_by_role("button", name="Start")
    until("it is disabled", start.is_disabled)
    assert start.evaluate("e => getComputedStyle(e).opacity") == "0.6"
    assert reason in page.locator(f"#{start.get_attribute('aria-describedby')}").inner_text()
    start.click(force=True)


def test_start_is_possible_once_the_error_is_mended(visitor: Visitor) -> None:
    page = visitor.go("/new")
    page.get_by_label("lr", exact=True).fill("0")
    check_start_is_refused(page, "lr")
    page.get_by_label("lr", exact=True).fill("0.5")
    start = page.get_by_role("button", name="Start")
    until("it is enabled", start.is_enabled)
    assert start.evaluate("e => getComputedStyle(e).opacity") == "1"
    assert page.get_by_role("alert").filter(has_text="lr").count() == 0


def test_a_run_that_the_cloud_refuses_can_be_tried_again(visitor: Visitor) -> None:
    page = visitor.go("/new")
    start = page.get_by_role("button", name="Start")
    for name in ("absent.safetensors", "missing.safetensors"):
        page.get_by_label("Spec as YAML").fill(f"init: {{file: {name}}}\n")
        start.click()
        page.get_by_role("alert").filter(has_text=name).wait_for()
        page.locator(".help.wrong").filter(has_text=name).wait_for()
        assert start.is_enabled()
    assert page.url.endswith("/ui/new")


def test_another_algorithm_leaves_what_is_entered_and_its_marks(visitor: Visitor) -> None:
    page = visitor.go("/new")
    page.get_by_label("data", exact=True).fill("{name: [")
    page.get_by_label("lr", exact=True).fill("0")
    wrong = page.locator(".help.wrong")
    until("both are marked", lambda: wrong.count() == 2)
    press_keys(page, "algorithm", "fedprox", 0)
    page.keyboard.press("Enter")
    page.get_by_label("mu", exact=True).wait_for()
    assert wrong.count() == 2
    assert page.get_by_label("data", exact=True).input_value() == "{name: ["
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "algorithm"
    assert "lr: 0.0\nalgorithm:\n  name: fedprox\n" in text_of(page)


def test_a_parameter_belongs_to_the_algorithm_that_the_text_names(visitor: Visitor) -> None:
    page = visitor.go("/new")
    text = page.get_by_label("Spec as YAML")
    text.fill("algorithm: fedprox\n")
    text.blur()
    press_keys(page, "mu", "0.25", 100)
    wait_for_text(page, "mu: 0.25")
    assert text_of(page) == "algorithm:\n  name: fedprox\n  params:\n    mu: 0.25\n"


def test_what_is_typed_outlives_a_lost_connection(visitor: Visitor) -> None:
    page = visitor.go("/new")
    page.get_by_label("name", exact=True).first.fill("before")
    wait_for_text(page, "name: before")
    # The browser tries again after 12 s: longer than NiceGUI keeps a page of its own accord.
    page.evaluate("io = socket.io, io.reconnectionDelay(12000), io.reconnectionDelayMax(12000)")
    page.evaluate("io.randomizationFactor(0), io.engine.close()")
    page.get_by_text("The page reconnects by itself").wait_for()
    page.get_by_text("The page reconnects by itself").wait_for(state="hidden")
    page.get_by_label("num_rounds", exact=True).fill("7")
    wait_for_text(page, "num_rounds: 7")
    assert "name: before" in text_of(page)


def test_a_click_on_a_page_that_stands_still_is_not_lost_and_no_refreshes_pile_up_behind_it(visitor: Visitor) -> None:
    spec = SPEC | PACED | {"name": "while it stands still", "num_rounds": 100_000}  # it pauses soon
    run = httpx2.post(f"{visitor.url}/runs", json={"spec": spec}, timeout=120).json()["run"]
    page = visitor.go(f"/runs/{run}")
    status = page.get_by_role("status")
    status.filter(has_text="running").wait_for()
    page.evaluate("setTimeout(() => { const end = Date.now() + 15_000; while (Date.now() < end); })")
    visitor.messages.clear()
    page.get_by_role("button", name="Pause").click()
    status.filter(has_text="paused").wait_for()
    said = [message.split(" ", 2)[1:] for message in visitor.messages]
    assert not [what for what, _ in said if what in ("opened", "closed")]
    updates = [text for what, text in said if what == "received" and '"update"' in text]
    assert len(updates) < 10, "15 s stood still, at one refresh a second"
    page.get_by_role("button", name="Stop").click()
    status.filter(has_text="stopped").wait_for()
    httpx2.delete(f"{visitor.url}/runs/{run}", timeout=60).raise_for_status()  # other tests count the runs


def test_the_form_offers_names_where_it_takes_yaml(visitor: Visitor) -> None:
    page = visitor.go("/new")
    for field, name in (("data", "mnist"), ("model", "resnet18"), ("partition", "dirichlet")):
        line = page.get_by_role("combobox", name=field, exact=True)
        assert name in line.evaluate("e => [...e.list.options].map(option => option.value)")
        line.fill(name)
        wait_for_text(page, f"{field}: {name}\n")


def test_the_plan_is_shown_before_a_run_is_started_and_goes_with_the_next_change(visitor: Visitor, url: str) -> None:
    n_runs, page = len(runs_of(url)), visitor.go("/new")
    text, plan = page.get_by_label("Spec as YAML"), page.get_by_label("Plan", exact=True)
    text.fill("round_deadline_s: 600\n")
    page.get_by_role("button", name="Show plan").click()
    plan.get_by_text("without effect: round_deadline_s 600").wait_for()
    plan.get_by_text("a round that waits for all takes").wait_for()
    text.fill("round_deadline_s: 601\n")
    until("no plan of another spec", lambda: plan.inner_text() == "")
    text.fill("model: nowhere\n")
    page.get_by_role("button", name="Show plan").click()
    plan.get_by_text("unknown model 'nowhere'").wait_for()
    assert len(runs_of(url)) == n_runs


def test_a_form_field_does_not_overwrite_a_text_with_an_error(visitor: Visitor, url: str) -> None:
    n_runs = len(runs_of(url))
    page = visitor.go("/new")
    text = page.get_by_label("Spec as YAML")
    text.fill("name: mine\nlr: -1\n")
    page.get_by_label("seed", exact=True).fill("5")
    page.get_by_role("alert").filter(has_text="lr").wait_for()
    check_start_is_refused(page, "lr")
    press_keys(page, "algorithm", "fedprox", 0)
    page.keyboard.press("Enter")
    page.locator(".help.wrong").filter(has_text="first mend the text").nth(1).wait_for()
    assert text.input_value() == "name: mine\nlr: -1\n"
    text.fill("name: mine\nlr: 0.5\n")
    text.blur()
    until("the form has the text's values", lambda: page.get_by_label("lr", exact=True).input_value() == "0.5")
    text.fill("lr: -1\n")
    page.get_by_label("seed", exact=True).fill("5")
    page.locator(".help.wrong").filter(has_text="first mend the text").wait_for()
    text.fill("name: mine\nlr: 0.5\n")  # the text that the form had
    text.blur()
    until("start is possible", page.get_by_role("button", name="Start").is_enabled)
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
    found: list[str] = page.locator(".q-table").first.locator(f"tbody tr td:nth-child({number})").all_inner_texts()
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
