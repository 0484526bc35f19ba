"""The dashboard in a real browser with a real topology: runs from the form to their end, and all other pages."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from shared.core.formatting import percent
from shared.service.body_limit import ANONYMOUS_BYTES
from strata.api.client import Client
from tests.e2e.browser import Visitor
from tests.e2e.test_scaling import environment
from tests.forked_strata import Command
from tests.waits import PACED, until

pytestmark = pytest.mark.e2e
WORD = "a token of the tests"
SPEC = """
name: from a file
data: {name: digits, n_train: 300}
num_rounds: 3
num_devices: 4
devices: {profile: agent}
"""
NAMES = ("the first", "the second")


@contextmanager
def started(folder: Path, devices: int = 4, agents: int = 4, **env: str) -> Iterator[str]:
    """`strata up`, usually with one device per agent; yields the cloud's address."""
    numbers = ["--edges", "2", "--devices", str(devices), "--agents", str(agents)]
    words = ["up", *numbers, "--port", "0", "--format", "json"]
    up = Command(*words, cwd=folder, env=environment(folder) | env)
    try:
        line = up.stdout.readline()
        assert line, up.stderr.read()
        yield json.loads(line)["url"]
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    with started(tmp_path_factory.mktemp("dashboard")) as found:
        yield found


def runs_of(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx2.get(f"{url}/runs", timeout=120).json()["runs"]
    return found


def of_name(url: str, name: str) -> dict[str, Any]:
    (found,) = (run for run in runs_of(url) if run["name"] == name)
    return found


@pytest.fixture(scope="module")
def two_runs(url: str) -> None:
    """Two runs that have ended."""
    for name in NAMES:
        spec = yaml.safe_load(SPEC) | {"name": name}
        httpx2.post(f"{url}/runs", json={"spec": spec}, timeout=120).raise_for_status()
    until("both are over", lambda: {of_name(url, name)["status"] for name in NAMES} == {"completed"})


def wait_completed(visitor: Visitor) -> None:
    visitor.page.get_by_role("status").filter(has_text="completed").wait_for()


def spans_of(charts: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the seconds of compute by seat of the timeline; none before it is drawn."""
    drawn = (chart for chart in charts if any(series.get("name") == "compute" for series in chart["series"]))
    if (timeline := next(drawn, None)) is None:
        return {}
    found: dict[str, float] = dict.fromkeys(timeline["yAxis"][0]["data"], 0.0)
    for series in timeline["series"]:
        if series["name"] == "compute":
            for row, cell in zip(found, series["data"], strict=True):
                found[row] += cell["value"] if cell else 0.0
    return {row: seconds for row, seconds in found.items() if row.startswith("device ")}


def opened(page: Any, seat: str) -> Any:
    """Opens the window of a device and returns it."""
    page.locator(f'[data-key="seat {seat}"]').click()
    return page.get_by_role("dialog")


@pytest.mark.smoke
def test_from_the_form_to_the_end_of_a_run(visitor: Visitor, url: str) -> None:
    page = visitor.go("/new")
    page.get_by_label("name", exact=True).first.fill("from the form")
    page.get_by_label("num_rounds", exact=True).fill("3")
    page.get_by_label("data", exact=True).fill("{name: digits, n_train: 300}")
    page.get_by_label("lr", exact=True).fill("-1")
    page.get_by_text("lr: ").wait_for()
    page.get_by_label("lr", exact=True).fill("0.1")
    page.get_by_label("lr", exact=True).blur()
    until("the form is right", lambda: "lr: 0.1" in page.get_by_label("Spec as YAML").input_value())
    page.get_by_role("button", name="Start").dblclick()
    page.wait_for_url("**/ui/runs/r*")
    wait_completed(visitor)
    page.get_by_text("3 of 3", exact=True).wait_for()
    info = of_name(url, "from the form")  # one, also of two clicks
    assert (info["rounds"], info["spec"]["lr"]) == (3, 0.1)
    page.get_by_text(f"{percent(info['accuracy'])} after round 3").first.wait_for()

    def drawn() -> bool:
        lines = [s for chart in visitor.charts() for s in chart["series"] if s.get("name") == "global model"]
        return any(
            len(s["data"]) == 3 and s["data"][-1] == [3, pytest.approx(100 * info["accuracy"], 1e-3)] for s in lines
        )

    until("the curve has all rounds", drawn)
    until("the charts are drawn", lambda: len(visitor.charts()) >= 7)
    page.get_by_role("button", name="by simulated time").click()
    until("time is to the right", lambda: "simulated time" in json.dumps(visitor.charts()[0]["xAxis"]))


@pytest.mark.usefixtures("two_runs")  # devices have numbers once a run has seats
def test_timeline_of_a_run_from_a_file_shows_its_slow_device(visitor: Visitor, url: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    page = visitor.go("/")
    dialog = opened(page, "0")
    dialog.get_by_label("Profile of the agent").click()
    page.get_by_role("option", name="phone_low").click()
    dialog.get_by_role("button", name="Set profile").click()
    page.get_by_text("Takes effect in runs whose spec names no profile, or agent.").wait_for()
    page = visitor.go("/new")
    page.locator("input[type=file]").set_input_files(tmp_path / "spec.yaml")
    until("the file is in the text", lambda: "from a file" in page.get_by_label("Spec as YAML").input_value())
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/ui/runs/r*")
    wait_completed(visitor)
    until("the timeline is drawn", lambda: len(spans_of(visitor.charts())) == 4)
    seconds = spans_of(visitor.charts())
    profiles = {d["seat"]: d["profile"] for d in httpx2.get(f"{url}/runs/latest/seats", timeout=120).json()["seats"]}
    (slow,) = (f"device {seat}" for seat, profile in profiles.items() if profile == "phone_low")
    by_seat = {row.split(" · ")[0]: value for row, value in seconds.items()}
    assert by_seat.pop(slow) > 2 * max(by_seat.values())


def tab_to(page: Any, name: str) -> None:
    """Press Tab until the element of this name has a visible focus."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if name in page.evaluate("(e => [e.ariaLabel, e.textContent])(document.activeElement)"):
            break
    else:
        raise AssertionError(f"{name} is out of the keyboard's reach")
    assert page.evaluate("document.activeElement.matches(':focus-visible')")


def test_a_run_can_be_started_by_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.go("/new")
    for field, value in (("name", "by keyboard"), ("num_rounds", "100000"), ("data", "{name: digits, n_train: 300}")):
        tab_to(page, field)
        page.keyboard.press("Control+A")
        page.keyboard.type(value)
    until("the form is right", lambda: "num_rounds: 100000" in page.get_by_label("Spec as YAML").input_value())
    tab_to(page, "play_arrowStart")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/runs/r*")
    status = page.get_by_role("status")
    status.get_by_text("running").wait_for()
    for button, key, there in (("pausePause", "Space", "paused"), ("play_arrowResume", "Enter", "running")):
        tab_to(page, button)
        page.keyboard.press(key)
        status.get_by_text(there).wait_for()
    tab_to(page, "stopStop")
    page.keyboard.press("Enter")
    status.get_by_text("stopped").wait_for()
    tab_to(page, "Topology")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/?run=r*")
    page.get_by_text("This page shows run by keyboard").wait_for()
    page.get_by_role("button", name="edge-1", exact=True).wait_for()
    tab_to(page, "edge-1")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("heading", name="edge-1").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


@pytest.mark.usefixtures("two_runs")
def test_two_runs_side_by_side(visitor: Visitor) -> None:
    page = visitor.go("/runs")
    page.get_by_role("link", name=NAMES[0]).wait_for()
    assert page.get_by_role("button", name="Compare").is_disabled()
    for box in page.locator("tbody").get_by_role("checkbox").all():
        box.click()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/ui/compare?*")
    for name in NAMES:
        page.get_by_role("cell", name=name).first.wait_for()
    until("a line for each run", lambda: set(NAMES) == named(visitor.charts()))
    target = page.get_by_label("Accuracy to reach, %")
    for typed, shown in (("12.5", "to reach 12.50 %"), ("99", "to reach 99.00 %")):
        target.fill("")
        target.press_sequentially(typed, delay=50)
        page.get_by_role("columnheader", name=shown).wait_for()
        assert target.input_value() == typed
    assert page.get_by_role("cell", name="not reached").count() == page.url.count("run=") >= 2
    target.fill("101")
    page.get_by_text("from 0 to 100 %").wait_for()
    page = visitor.go("/runs")
    page.get_by_label("Filter").fill(NAMES[1])
    until("the filter holds", lambda: page.locator("tbody").get_by_role("checkbox").count() == 1)


def named(charts: list[dict[str, Any]]) -> set[str]:
    """Returns the names of lines without the suffixes that make labels unique."""
    names = {series.get("name", "") for chart in charts for series in chart["series"]}
    return {known for known in NAMES for name in names if known in name}


def test_scale_pause_stop_and_a_device_offline(visitor: Visitor, url: str) -> None:
    page = visitor.go("/")
    page.get_by_label("Devices").fill("6")
    page.get_by_role("button", name="Scale").click()
    page.get_by_role("heading", name="2 edges, 6 devices").wait_for()
    spec = {"name": "long", "data": {"name": "digits", "n_train": 300}, "num_rounds": 1000, "num_devices": 6, **PACED}
    run = httpx2.post(f"{url}/runs", json={"spec": spec}, timeout=120).json()["run"]
    page = visitor.go(f"/runs/{run}")
    page.get_by_role("status").filter(has_text="running").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("status").filter(has_text="paused").wait_for()
    assert page.get_by_role("button", name="Pause").is_disabled()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("status").filter(has_text="running").wait_for()
    page = visitor.go("/")
    dialog = opened(page, "1")
    dialog.get_by_role("button", name="Take offline").click()
    page.get_by_text("Takes effect from the next round on.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="offline 1").wait_for()
    page = visitor.go(f"/runs/{run}")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("status").filter(has_text="stopped").wait_for()
    assert httpx2.get(f"{url}/runs/{run}", timeout=120).json()["status"] == "stopped"


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_fits_a_phone(chromium: Any, url: str, dark: bool) -> None:
    narrow = Visitor(chromium, url, 390, dark=dark)
    ids = [run["run"] for run in runs_of(url)][:2]
    for path in ("/", "/runs", "/new", f"/runs/{ids[0]}", "/compare?" + "&".join(f"run={run}" for run in ids)):
        narrow.go(path)
        assert not narrow.is_wider_than_its_window(), path
        assert narrow.page.evaluate("document.body.classList.contains('body--dark')") is dark
    assert narrow.complaints == []
    narrow.window.close()


def test_pages_of_unknown_resources_say_so(visitor: Visitor) -> None:
    visitor.page.goto(f"{visitor.url}/ui/runs/r-none")
    visitor.page.get_by_role("alert").filter(has_text="r-none").wait_for()
    visitor.page.goto(f"{visitor.url}/ui/compare")
    visitor.page.get_by_text("Select two or more").wait_for()


def test_a_token_requires_a_login(chromium: Any, tmp_path: Path) -> None:
    with started(tmp_path, 1, 1, STRATA_API_TOKEN=WORD) as url:
        visitor = Visitor(chromium, url)
        page = visitor.page
        page.goto(f"{url}/ui/runs")
        page.get_by_label("API token").fill("a guess")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").filter(has_text="not the API token").wait_for()
        page.get_by_label("API token").fill(WORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Runs", level=1).wait_for()
        (tmp_path / "large.yaml").write_text(SPEC + f"# {'x' * 70}\n" * 1000)
        visitor.go("/new").locator("input[type=file]").set_input_files(tmp_path / "large.yaml")
        until("it is in the text", lambda: "from a file" in page.get_by_label("Spec as YAML").input_value())
        assert len(page.get_by_label("Spec as YAML").input_value()) > ANONYMOUS_BYTES
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("API token").wait_for()
        check_user(url, visitor)
        assert [said for said in visitor.complaints if "401" not in said] == []


def check_user(url: str, visitor: Visitor) -> None:
    """A user who logs in is named, changes their own runs alone, and is out once their token is removed."""
    page, spec = visitor.page, {**yaml.safe_load(SPEC), **PACED, "num_rounds": 2000, "num_devices": 1, "num_edges": 1}
    with Client(url, token=WORD) as admin:
        token = admin.add_token("alice").token
        theirs = admin.create_run(spec).run
        with Client(url, token=token) as alice:
            own = alice.create_run(spec).run
        page.get_by_label("API token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Logged in as").filter(has_text="alice").wait_for()
        visitor.go(f"/runs/{theirs}")
        page.get_by_role("status").filter(has_text="running").first.wait_for()
        assert page.get_by_role("button", name="Pause").is_disabled()
        assert page.get_by_role("button", name="Add").is_disabled()
        visitor.go(f"/runs/{own}")
        page.get_by_text("to begin before this one").or_(page.get_by_text("1 of admin")).first.wait_for()
        page.get_by_role("button", name="Stop").click()
        until("the stop", lambda: admin.run(own).status == "stopped")
        visitor.go("/runs")
        until("the owners", lambda: "owner" in visitor.columns())
        visitor.go("/")
        page.get_by_role("button", name="Scale").click()
        page.get_by_text("only the administrator may do this, not the user alice").wait_for()
        admin.remove_token("alice")
        told = page.get_by_role("alert").filter(has_text="the token of alice has been removed")
        told.or_(page.get_by_label("API token")).first.wait_for()  # the page that says so is soon the one to log in
        admin.stop(theirs)
