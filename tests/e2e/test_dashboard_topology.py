"""The topology page in a real browser: its numbers are the API's, and a refresh takes neither a click nor the focus."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from shared.core.formatting import size
from tests.e2e.browser import Visitor
from tests.e2e.test_dashboard import started
from tests.e2e.test_scaling import environment
from tests.waits import HANG_S, PACED, until

pytestmark = pytest.mark.e2e
STRAGGLERS: dict[str, Any] = {
    "name": "stragglers",
    "data": {"name": "digits", "n_train": 300},
    "num_rounds": 3,
    "num_devices": 4,
    "devices": {"profile": "phone_low", "straggler_ratio": 0.5, "straggler_slows": "compute"},
    "round_deadline_s": 0.2,
    "quorum": 0.25,
    "losses": [{"round_no": 3, "seats": [0]}],
}
"""In its last round device 0 is left out and device 2 is late."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    with started(tmp_path_factory.mktemp("topology")) as found:
        yield found


def ask(url: str, path: str) -> Any:
    return httpx2.get(f"{url}{path}", timeout=120).raise_for_status().json()


def begun(url: str, **spec: Any) -> str:
    run: str = httpx2.post(f"{url}/runs", json={"spec": spec}, timeout=120).raise_for_status().json()["run"]
    return run


@pytest.fixture(scope="module")
def stragglers(url: str) -> str:
    """A run that is over."""
    run = begun(url, **STRAGGLERS)
    until("the run is completed", lambda: ask(url, f"/runs/{run}")["status"] == "completed")
    return run


@pytest.fixture
def endless(url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A run that trains: each refresh of the page finds new rounds."""
    spec = {"name": "long", "data": {"name": "digits", "n_train": 300}, "num_rounds": 100_000, "num_devices": 4}
    found = begun(url, **spec, **getattr(request, "param", PACED))
    yield found
    httpx2.post(f"{url}/runs/{found}/stop", timeout=120).raise_for_status()
    until("the run has stopped", lambda: ask(url, f"/runs/{found}")["status"] == "stopped")


def states_of(page: Any) -> dict[str, str]:
    """The state of each device by its key, as its mark shows it."""
    marks = page.locator(".topo-mark").evaluate_all("all => all.map(e => [e.dataset.key, e.dataset.state])")
    return dict(marks)


def round_of(page: Any) -> int:
    """The number of rounds of the run that the page shows."""
    found = re.search(r"round (\d+) of", page.locator("a[href*='/runs/']").inner_text())
    return int(found[1]) if found else 0


def wait_for_refresh(page: Any) -> None:
    """Returns once the page shows a later round."""
    before = round_of(page)
    until("the page is refreshed", lambda: round_of(page) > before)


def chips_of(page: Any) -> dict[str, int]:
    """The number of devices by state, as the legend says it."""
    texts = page.locator(".topo-chip").all_inner_texts()
    return {state: int(number) for state, number in (text.split() for text in texts)}


def test_every_number_is_that_of_the_api_and_states_add_up_to_the_devices(
    visitor: Visitor, url: str, stragglers: str
) -> None:
    run = stragglers
    page = visitor.go(f"/?run={run}")
    page.get_by_role("link", name="stragglers: completed, round 3 of 3").wait_for()
    topology, newest = ask(url, "/topology"), ask(url, f"/runs/{run}/rounds/3")
    seats = [seat for seat in ask(url, f"/runs/{run}/seats")["seats"] if seat["role"] != "worker"]
    heading = page.get_by_role("heading", level=1).inner_text()
    assert heading == f"{len(topology['edges'])} edges, {topology['n_devices']} devices" == "2 edges, 4 devices"
    words = {row["seat"]: "late" if row["reason"] == "late" else row["outcome"] for row in newest["seats"]}
    expected = {f"seat {seat['seat']}": words[seat["seat"]] for seat in seats}
    assert expected == {"seat 0": "failed", "seat 1": "used", "seat 2": "late", "seat 3": "used"}
    until("each mark has the state of its device", lambda: states_of(page) == expected)
    counts = {state: number for state, number in chips_of(page).items() if number}
    assert counts == Counter(expected.values())
    assert sum(counts.values()) == topology["n_devices"]
    visits = page.get_by_role("status").inner_text()
    assert visits == f"round 3: {newest['n_visits']} tasks: 2 used, 1 late, 1 failed"
    edges_up, edges_down = size(newest["edge_bytes_up"]), size(newest["edge_bytes_down"])
    devices_up, devices_down = size(newest["device_bytes_up"]), size(newest["device_bytes_down"])
    links = f"links of the edges ↑ {edges_up} ↓ {edges_down}, links of the devices ↑ {devices_up} ↓ {devices_down}"
    page.get_by_text(links, exact=True).wait_for()
    for edge in newest["edges"]:
        text = page.locator(".topo-card").filter(has_text=edge["edge"]).inner_text()
        rows = [row for row in newest["seats"] if row["edge"] == edge["edge"]]
        up_bytes, down_bytes = (sum(row[name] for row in rows) for name in ("up_bytes", "down_bytes"))
        assert f"cloud ↑ {size(edge['up_bytes'])} ↓ {size(edge['down_bytes'])}" in text
        assert f"{len(rows)} devices ↑ {size(up_bytes)} ↓ {size(down_bytes)}" in text
    page.locator('[data-key="seat 2"]').click()
    visits_of_device = page.get_by_role("dialog").locator("tbody tr")
    until("its history is there", lambda: visits_of_device.count() == 3)
    assert visits_of_device.first.inner_text().split("\t")[:2] == ["3", "late"]


def test_search_filter_and_arrow_keys_lead_to_a_device(visitor: Visitor, stragglers: str) -> None:
    page = visitor.go(f"/?run={stragglers}")
    until("all devices are there", lambda: len(states_of(page)) == 4)
    find = page.get_by_label("Find an edge, agent or device number")
    find.fill("2")
    assert list(states_of(page)) == ["seat 2"]
    find.fill("Device 3")
    assert list(states_of(page)) == ["seat 3"]
    assert page.locator(".topo-mark small").all_inner_texts() == ["3"]
    find.fill("EDGE-2")
    assert list(states_of(page)) == ["seat 1", "seat 3"]
    find.fill("nobody")
    page.get_by_text("Nothing matches.").wait_for()
    find.fill("")
    late = page.get_by_role("button", name=re.compile("^late"))
    late.click()
    assert late.get_attribute("aria-pressed") == "true"
    assert list(states_of(page)) == ["seat 2"]
    late.click()
    assert len(states_of(page)) == 4
    assert page.locator('.topo-cards [tabindex="0"]').count() == 1
    page.locator('.topo-cards [tabindex="0"]').focus()
    reached = []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        reached.append(page.evaluate("document.activeElement.dataset.key"))
    assert reached == ["seat 0", "seat 2", "edge edge-2", "seat 1", "seat 3"]
    page.get_by_text("device 3: ").first.wait_for()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    below = page.evaluate("document.activeElement.dataset.key")
    assert below in ("seat 0", "seat 2"), "the nearest device of the first edge"
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name=below.replace("seat", "device")).wait_for()
    page.keyboard.press("Escape")
    page.locator('[data-key="seat 3"]').evaluate("e => e.click()")  # while the first dialog fades out
    page.get_by_role("dialog", name="device 3").wait_for()


def test_a_second_click_before_the_first_ones_answer_opens_no_second_dialog(visitor: Visitor, stragglers: str) -> None:
    page = visitor.go(f"/?run={stragglers}")
    page.locator('[data-key="seat 2"]').evaluate("e => { e.click(); e.click(); }")
    dialogs = page.get_by_role("dialog")
    dialogs.first.wait_for()
    page.wait_for_timeout(2000)
    assert dialogs.count() == 1


def test_a_dialog_and_labels_follow_an_agent_that_is_taken_offline_and_brought_back(
    visitor: Visitor, stragglers: str
) -> None:
    page = visitor.go(f"/?run={stragglers}")
    page.locator('[data-key="seat 1"]').click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("heading", name="device 1: used").wait_for()
    dialog.get_by_text("on agent agent-").wait_for()
    assert dialog.get_by_text("Digital twin").filter(visible=True).count() == 0, "the run keeps none"
    button = dialog.get_by_role("button", name=re.compile("^(Take offline|Bring online)$"))
    button.focus()
    for said, state, agent, follows in (
        ("Bring online", "offline", "offline", "Runs leave its devices out now."),
        ("Take offline", "used", "alive", "Runs use its devices again."),
    ):
        page.keyboard.press("Enter")
        dialog.get_by_role("heading", name=f"device 1: {state}").wait_for()
        dialog.get_by_text(re.compile(rf"on agent agent-\d, {agent}$", re.MULTILINE)).wait_for()
        page.get_by_text(follows).first.wait_for()
        assert button.inner_text().capitalize() == said
        assert button.evaluate("e => e === document.activeElement")
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    mark = page.locator('[data-key="seat 1"]')
    label = mark.get_attribute("aria-label")
    assert label.startswith("device 1: used")
    mark.hover()
    assert page.locator(".topo-tip").inner_text() == label


def test_the_label_at_the_pointer_is_refreshed(visitor: Visitor, endless: str) -> None:
    page = visitor.go("/")
    page.get_by_role("link", name="long: running").wait_for()
    page.locator('[data-key="seat 2"]').hover()
    before = page.locator(".topo-tip").inner_text()
    until("its round is another one", lambda: page.locator(".topo-tip").inner_text() != before)


def test_an_earlier_run_is_shown_by_its_link(visitor: Visitor, url: str, stragglers: str, endless: str) -> None:
    page = visitor.go(f"/runs/{stragglers}")
    page.locator(".content").get_by_role("link", name="Topology").click()
    page.get_by_text(f"This page shows run stragglers ({stragglers}).").wait_for()
    page.get_by_role("link", name="stragglers: completed, round 3 of 3").wait_for()
    page.get_by_text("1 other run trains now").wait_for()
    page.get_by_text("answered in round 3").first.wait_for()
    page.get_by_role("link", name="Show the run that trains, or else the newest").click()
    page.get_by_role("link", name="long: running").wait_for()


def test_a_refresh_takes_neither_the_click_nor_the_focus(visitor: Visitor, endless: str) -> None:
    page = visitor.go("/")
    page.get_by_role("link", name="long: running").wait_for()
    page.get_by_text("links of the edges").wait_for()  # the line that comes with the first round
    device = page.locator('[data-key="seat 1"]')
    device.focus()
    wait_for_refresh(page)
    assert page.evaluate("document.activeElement.dataset.key") == "seat 1"
    device.hover()
    takes = device.locator("svg").evaluate("e => getComputedStyle(e).pointerEvents")
    assert takes == "none", "the shape changes with the state, and would take the click with it"
    page.mouse.down()
    wait_for_refresh(page)
    page.mouse.up()
    dialog = page.get_by_role("dialog")
    offline, newest = dialog.get_by_role("button", name="Take offline"), dialog.locator("tbody tr").first
    offline.hover()
    page.mouse.down()
    before = newest.inner_text()
    until("the dialog has a new visit", lambda: newest.inner_text() != before)
    page.mouse.up()
    dialog.get_by_role("button", name="Bring online").click()
    offline.wait_for()


ASYNCHRONOUS = {"sync": {"devices": {"mode": "asynchronous", "buffer": 1}, "edges": {"mode": "asynchronous"}}}


@pytest.mark.parametrize("endless", [ASYNCHRONOUS], indirect=True)
def test_an_asynchronous_run_shows_the_age_of_updates_and_the_orders_in_flight(
    visitor: Visitor, url: str, endless: str
) -> None:
    until("some versions are made", lambda: ask(url, f"/runs/{endless}")["rounds"] > 20)
    page = visitor.go("/")
    page.get_by_text(re.compile(r"^request in flight, \d+ versions? old$")).first.wait_for()
    httpx2.post(f"{url}/runs/{endless}/pause", timeout=120).raise_for_status()
    until("it is paused", lambda: ask(url, f"/runs/{endless}")["status"] == "paused")
    page.get_by_role("link", name="long: paused").wait_for()
    ages: dict[int, int] = {}
    last = ask(url, f"/runs/{endless}")["rounds"]
    for number in range(max(1, last - 99), last + 1):
        for visit in ask(url, f"/runs/{endless}/rounds/{number}")["seats"]:
            if visit["outcome"] == "used":
                ages[visit["seat"]] = visit["staleness"]
    assert set(ages) == {0, 1, 2, 3}

    def shown() -> dict[int, int]:
        marks = page.locator(".topo-mark").all()
        texts = {int(mark.get_attribute("data-key").split()[1]): mark.locator("text") for mark in marks}
        return {seat: int(text.text_content()) for seat, text in texts.items() if text.count()}

    until("each mark has the age of its update", lambda: shown() == ages)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    """The address of the page with 40 edges and 400 devices."""
    folder = tmp_path_factory.mktemp("large")
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "log").open("wb") as log:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        words = [sys.executable, "-m", "tests.e2e.large_topology", str(listener.fileno())]
        options: dict[str, Any] = {"cwd": folder, "env": environment(folder), "stdout": log, "stderr": log}
        process = subprocess.Popen(words, pass_fds=[listener.fileno()], **options)

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx2.get(f"{address}/ui/", timeout=5).is_success
        except httpx2.TransportError:
            return False

    until("the page is served", answers)
    yield address
    process.terminate()
    process.wait(HANG_S)


_SHIFTS = (
    "window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach("
    "e => { if (!e.hadRecentInput) window.shift += e.value; })).observe({type: 'layout-shift', buffered: true});"
)
LARGEST_SHIFT = 0.1
REFERENCE_WORK = """() => {
  const found = document.createElement('div');
  for (let n = 0; n < 6000; n++) found.append(Object.assign(document.createElement('p'), {innerText: n}));
  document.body.append(found);
  const height = found.offsetHeight;
  found.remove();
  return height;
}"""
"""Makes six thousand paragraphs and lays them out: more than one refresh may take."""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["light", "narrow and dark"])
def test_forty_edges_and_four_hundred_devices_fit(chromium: Any, large: str, width: int, dark: bool) -> None:
    visitor = Visitor(chromium, large, width, dark=dark)
    visitor.page.add_init_script(_SHIFTS)
    page = visitor.go("/")
    page.get_by_role("heading", name="40 edges, 400 devices").wait_for()
    until("all devices are there", lambda: len(states_of(page)) == 400)
    assert page.locator(".topo-card").count() == 40
    assert sum(chips_of(page).values()) == 400
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def figures() -> dict[str, float]:
        return {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}

    first, before, marks_before = round_of(page), figures(), states_of(page)
    page.wait_for_timeout(5000)
    wait_for_refresh(page)
    after, last = figures(), round_of(page)
    page.evaluate(REFERENCE_WORK)
    reference_s = figures()["TaskDuration"] - after["TaskDuration"]
    assert (after["TaskDuration"] - before["TaskDuration"]) / (last - first) < reference_s
    assert states_of(page) != marks_before
    assert not visitor.is_wider_than_its_window()
    assert page.evaluate("window.shift") < LARGEST_SHIFT
    sizes = page.locator(".topo-mark").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")
    assert min(sizes) >= 24
    page.locator('.topo-cards [tabindex="0"]').focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.key") == "seat 399"
    assert visitor.complaints == []
    visitor.window.close()


def test_a_run_that_cannot_be_read_is_said_to_be_so(chromium: Any, large: str) -> None:
    page = Visitor(chromium, large).go("/?run=r-old")
    page.get_by_role("alert").filter(has_text="run r-old cannot be read").wait_for()
    page.context.close()
