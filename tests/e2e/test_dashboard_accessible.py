"""The dashboard for everybody: axe-core complains of no page or dialog, all is reached by keyboard, nothing jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.e2e.browser import Visitor
from tests.e2e.test_dashboard import runs_of, started
from tests.soak.deployment import FINAL
from tests.waits import until

pytestmark = pytest.mark.e2e
SPECS = (
    {"name": "first", "num_rounds": 3},
    {"name": "second", "num_rounds": 2, "algorithm": "fedprox"},
)
THEMES = {"light": False, "dark": True}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    """A topology with two runs, both over."""
    with started(tmp_path_factory.mktemp("accessible"), agents=2) as found:
        for spec in SPECS:
            body = {"spec": {"data": {"name": "digits", "n_train": 300}, "num_devices": 4, **spec}}
            httpx2.post(f"{found}/runs", json=body, timeout=120).raise_for_status()
        until("both are over", lambda: {run["status"] for run in runs_of(found)} == {"completed"})
        yield found


def pages(url: str) -> dict[str, str]:
    """The path of each kind of page."""
    ids = [run["run"] for run in runs_of(url)]
    compare = "/compare?" + "&".join(f"run={run}" for run in ids)
    return {
        "topology": "/",
        "runs": "/runs",
        "new run": "/new",
        "a run": f"/runs/{ids[0]}",
        "compare": compare,
        "compare nothing": "/compare",
    }


STILL = (
    "!document.querySelector('[class*=-enter-from]')"  # what has been added and begins to fade in with the next frame
    " && document.getAnimations().every(each => each.playState !== 'running')"
)


def violations(page: Any) -> list[str]:
    """What axe-core complains of: rule, help, and the elements concerned."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, options={"resultTypes": ["violations"], "selectors": False}).response["violations"]
    return [f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes']][:3]}" for each in found]


def open_device(page: Any) -> None:
    page.locator(".topo-mark").first.click()


def open_edge(page: Any) -> None:
    page.get_by_role("button", name="edge-1", exact=True).click()


def open_files(page: Any) -> None:
    page.get_by_role("button", name="Result files").click()


def open_removal(page: Any) -> None:
    page.locator("tbody").get_by_role("checkbox").first.click()
    page.get_by_role("button", name="Remove").click()


DIALOGS: dict[str, dict[str, Callable[[Any], None]]] = {
    "topology": {"a device": open_device, "an edge": open_edge},
    "a run": {"result files": open_files},
    "runs": {"removal": open_removal},
}
"""What opens each dialog, by page."""


@pytest.mark.parametrize("dark", THEMES.values(), ids=THEMES)
def test_axe_complains_of_no_page_and_no_dialog(chromium: Any, url: str, dark: bool) -> None:
    visitor = Visitor(chromium, url, dark=dark)
    found = {}
    for name, path in pages(url).items():
        page = visitor.go(path)
        found[name] = violations(page)
        for dialog, open_it in DIALOGS.get(name, {}).items():
            open_it(page)
            page.get_by_role("dialog").wait_for()
            until("it has faded in: half-transparent text has no contrast", partial(page.evaluate, STILL))
            found[f"dialog: {dialog}"] = violations(page)
            page.keyboard.press("Escape")
            page.get_by_role("dialog").wait_for(state="detached")
    visitor.page.goto(f"{url}/ui/runs/r-none")
    visitor.page.get_by_role("alert").filter(has_text="r-none").wait_for()
    found["an unknown run"] = violations(visitor.page)
    complaints = [f"{name}: {each}" for name, all_of in found.items() for each in all_of]
    assert not complaints, "\n".join(complaints)
    visitor.window.close()


CONTROLS = "a[href], button, summary, [role=button], [role=switch], [role=checkbox], [role=tab]"
TIPS = ".topo-tip, .q-tooltip"
STATE = f"""() => [
  document.querySelectorAll('{TIPS}').forEach(tip => tip.style.display = 'none'), // hovering shows them, no click
  location.href, document.body.className, document.body.innerText, document.activeElement.type === 'file',
  ...[...document.querySelectorAll('input, textarea')].map(e => e.value),
  ...[...document.querySelectorAll('[aria-expanded], [aria-checked], [aria-pressed]')]
    .map(e => ['expanded', 'checked', 'pressed'].map(name => e.getAttribute('aria-' + name)).join()),
].join('\\n')"""
CHOSEN_ALREADY = ("[aria-pressed=true]", "[aria-current]", "[aria-selected=true]")
UNUSABLE = f"e => e.matches({', '.join(CHOSEN_ALREADY)!r}) || e.closest('[disabled], [aria-disabled=true]') !== null"
LEAVE = r"""navigation.addEventListener('navigate', each => {
  const {sameDocument, url} = each.destination;
  if (sameDocument || !/^\/ui\/(?!_nicegui)/.test(new URL(url).pathname)) return;
  each.preventDefault();
  window.leave(url);
})"""
"""Keeps a page where it is: the pages that its links ask for are opened later, each once."""
COVERS = ".q-dialog, .q-menu, .q-notification"


def test_every_button_and_link_of_every_page_does_something(chromium: Any, url: str) -> None:
    """Whatever is clicked changes the page, leads to another, opens a dialog, or sends or asks for a file."""
    visitor = Visitor(chromium, url)
    files, asked = list[Any](), list[str]()
    for event in ("download", "filechooser"):
        visitor.page.on(event, lambda each: files.append(each))
    visitor.page.expose_function("leave", lambda target: asked.append(target))
    visitor.page.add_init_script(LEAVE)
    idle = [each for path in pages(url).values() for each in clicked(visitor, path, files, asked)]
    assert not idle, "\n".join(idle)
    assert len({*asked}) > 4
    for target in {*asked}:
        visitor.go(target.removeprefix(f"{visitor.url}/ui"))
    assert visitor.complaints == []
    visitor.window.close()


def clicked(visitor: Visitor, path: str, files: list[Any], asked: list[str]) -> list[str]:
    """Clicks each control of a page, which is loaded anew if it is no longer there; returns those that did nothing."""
    page, idle, is_gone = opened(visitor, path), [], False
    found = controls(page)
    assert len(found) > 3, path
    for number in range(len(found)):
        if is_gone or is_covered(page) or not is_usable(found[number]):
            found = controls(opened(visitor, path))
        what = found[number].evaluate("e => e.ariaLabel || e.innerText || e.outerHTML.slice(0, 200)")
        if not does_something(page, found[number], files, asked):
            idle.append(f"{path}: {what}")
        is_gone = page.url != f"{visitor.url}/ui{path}"
    return idle


def opened(visitor: Visitor, path: str) -> Any:
    """Opens a page while no run is in progress, whose end would disable what is to be clicked."""
    until("all runs are over", lambda: all(run["status"] in FINAL for run in runs_of(visitor.url)))
    return visitor.go(path)


def is_covered(page: Any) -> bool:
    """Whether a dialog, a menu or a message is over the page that Escape does not close."""
    if page.locator(COVERS).count():
        page.keyboard.press("Escape")
        with suppress(pytest.importorskip("playwright.sync_api").TimeoutError):
            page.locator(COVERS).first.wait_for(state="detached", timeout=1000)
    return bool(page.locator(COVERS).count())


def is_usable(control: Any) -> bool:
    """Whether a control is still on its page, and neither disabled nor chosen already."""
    return bool(control.is_visible()) and not control.evaluate(UNUSABLE)


def does_something(page: Any, control: Any, *heard: list[Any]) -> bool:
    """Clicks a control; returns whether anything follows before a deadline; a report's pictures take long to draw."""
    before, n_heard = settled(page), sum(map(len, heard))
    control.click()
    for _ in range(480):
        with suppress(pytest.importorskip("playwright.sync_api").TimeoutError):
            page.wait_for_function(f"before => ({STATE})() !== before", arg=before, timeout=250)
            return True
        if sum(map(len, heard)) > n_heard:
            return True
    return False


def settled(page: Any) -> str:
    """The state of a page that no longer changes by an earlier click."""
    before, state = "", str(page.evaluate(STATE))
    while state != before:
        page.wait_for_timeout(100)
        before, state = state, str(page.evaluate(STATE))
    return state


def controls(page: Any) -> list[Any]:
    """What can be clicked, without what is disabled and what is chosen already.

    A button in a cell is made anew with each change of its page, and only its id stays.
    """
    found = [each for each in page.locator(CONTROLS).filter(visible=True).element_handles() if is_usable(each)]
    ids = [each.evaluate("e => e.matches('.in-row') && e.id") for each in found]
    return [page.locator(f"[id='{own}']") if own else each for each, own in zip(found, ids, strict=True)]


FIELDS = f"{CONTROLS}, input, textarea, select, th.sortable, [role=combobox]"
# A button in a cell is made anew with each change of its page: only its id stays.
NUMBERED = """() => {
  for (const [number, each] of [...document.querySelectorAll(%r)].entries())
    each.dataset.number = each.matches('.in-row') ? each.id : number;
}"""
FOCUSED = """() => {
  const each = document.activeElement, style = getComputedStyle(each);
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none';
  const number = each.matches('.in-row') ? each.id : each.dataset.number ?? '';
  return each === document.body ? null : [number, ring || each.closest('.q-field') !== null,
    each.ariaLabel || each.innerText || each.outerHTML.slice(0, 200)];
}"""
NOT_BY_TAB = "[tabindex='-1'], [type=file], [aria-hidden=true], [aria-hidden=true] *"


@pytest.mark.parametrize("kind", ["topology", "runs", "new run", "a run", "compare"])
def test_tab_reaches_every_control_and_shows_where_it_is(chromium: Any, url: str, kind: str) -> None:
    """Where arrow keys move within a group of controls, one of them is reached by Tab."""
    visitor = Visitor(chromium, url)
    page = visitor.go(pages(url)[kind])
    page.evaluate(NUMBERED % FIELDS)
    usable = f"e => !e.matches({NOT_BY_TAB!r}) && !e.closest('[disabled], [aria-disabled=true]')"
    wanted = [each for each in page.locator(FIELDS).filter(visible=True).element_handles() if each.evaluate(usable)]
    missing = {each.get_attribute("data-number"): each.evaluate("e => e.outerHTML.slice(0, 300)") for each in wanted}
    assert len(missing) > 5
    for _ in range(3 * len(missing)):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is not None:
            number, marked, what = focused
            assert marked, f"no focus ring: {what}"
            missing.pop(number, None)
    assert not missing, "\n".join(missing.values())
    visitor.window.close()


def is_order(head: Any, order: str) -> bool:
    return bool(head.get_attribute("aria-sort") == order)


def test_a_table_is_sorted_by_keyboard(chromium: Any, url: str) -> None:
    visitor = Visitor(chromium, url)
    page = visitor.go("/runs")
    head = page.get_by_role("columnheader", name="name")
    column = visitor.columns().index("name")
    names = page.locator(f"tbody td:nth-child({column + 1})")
    head.focus()
    for key, order, is_reversed in (("Enter", "ascending", False), ("Space", "descending", True)):
        page.keyboard.press(key)
        until("it is sorted", partial(is_order, head, order))
        found = names.all_inner_texts()
        assert found == sorted(found, reverse=is_reversed)
        assert {"first", "second"} <= {*found}
        assert head.evaluate("e => e === document.activeElement")
    visitor.window.close()


SHIFTS = """() => new Promise(done => {
  let sum = 0;
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
  }).observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done(sum), 3000);
})"""


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_jumps_while_a_page_is_built_and_refreshed(chromium: Any, url: str, width: int) -> None:
    """The layout shift of each page, from its request until some seconds after it is built."""
    visitor = Visitor(chromium, url, width)
    found = {}
    for kind, path in pages(url).items():
        page = visitor.go(path)
        found[kind] = round(page.evaluate(SHIFTS), 3)
    assert {kind: shift for kind, shift in found.items() if shift >= 0.1} == {}
    visitor.window.close()
