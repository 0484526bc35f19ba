"""What all pages have: navigation, dark mode, keeping up with the cloud, and saying what went wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import ui

from cloud_server.dashboard.charts import DARK, LIGHT, Look, height_px, options
from cloud_server.dashboard.offline_notice import AWAY
from cloud_server.dashboard.run_views import RunViews
from shared.core.errors import StrataError
from shared.plots.palette import COLOURS
from shared.storage.key_value import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloud_server.dependencies import Cloud
    from shared.plots.picture import Picture

T = TypeVar("T")
log = logging.getLogger(__name__)
EVERY_S = 1.0
_NAV = (("Topology", "/"), ("Runs", "/runs"), ("New run", "/new"))
_STYLE = """
<style>
  :root { --accent: #0072B2; }
  .nicegui-content { padding: 1rem; max-width: 1400px; margin: 0 auto; align-items: stretch; }
  .q-header { background: #12405c; }
  .q-header a { color: #fff; text-decoration: none; padding: .3rem .6rem; border-radius: .3rem; }
  .q-header a[aria-current] { background: rgb(255 255 255 / .2); }
  .q-table__container { overflow-x: auto; }
  a:focus-visible, button:focus-visible { outline: 3px solid #E69F00; outline-offset: 2px; }
  .facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; }
  .facts dt { opacity: .75; font-size: .8rem; } .facts dd { margin: 0; font-size: 1.15rem; }
  .wide { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1rem; }
  .wide { align-items: start; }
</style>
"""
_DARK_NOW = (
    "(localStorage.getItem('strata-dark') ?? String(matchMedia('(prefers-color-scheme: dark)').matches)) === 'true'"
)


class Dashboard:
    """What pages are made with.

    Attributes:
        watching: runs, for all viewers.
        logs_in: whether there is a session to end.
    """

    def __init__(self, cloud: Callable[[], Cloud], *, logs_in: bool) -> None:
        self._cloud, self.logs_in = cloud, logs_in
        self._watching: RunViews | None = None

    @property
    def cloud(self) -> Cloud:
        """The cloud, once it runs."""
        return self._cloud()

    @property
    def run_views(self) -> RunViews:
        """What is known of runs."""
        if self._watching is None:
            self._watching = RunViews(self.cloud)
        return self._watching


@dataclass
class Page:
    """One page in one browser.

    Attributes:
        look: ink and paper of its pictures.
        trouble: the line that says what is wrong now.
    """

    look: Look
    trouble: ui.label

    def keep_up(self, refresh: Callable[[], Awaitable[None]], every_s: float = EVERY_S) -> None:
        """Refresh again and again while the page is looked at; what goes wrong stands above until it is right again."""

        async def once() -> None:
            try:
                await refresh()
            except StrataError as error:
                self._say(f"Not up to date: {error.detail}")
            except Exception as error:
                log.exception("a page of the dashboard failed")
                self._say(f"Not up to date: {type(error).__name__}. The cloud's log has more.")
            else:
                self._say("")

        ui.timer(every_s, once, immediate=True)

    async def wait_for(self, look: Callable[[], Awaitable[T]]) -> T:
        """What the page cannot be built without: while the store is away it says so, for as long as somebody looks on.

        Raises:
            StoreUnavailable: nobody looks on any more.
        """
        while True:
            try:
                found = await look()
            except StoreUnavailable as error:
                if not ui.context.client.has_socket_connection:
                    raise
                self._say(f"Nothing to show yet: {error.detail}")
                await asyncio.sleep(EVERY_S)
            else:
                self._say("")
                return found

    def _say(self, words: str) -> None:
        self.trouble.set_text(words)
        self.trouble.set_visibility(bool(words))


@asynccontextmanager
async def open_page(dashboard: Dashboard, title: str, here: str = "") -> AsyncIterator[Page]:
    """A page with its navigation; what is built inside comes below. Waits for the browser to say whether it is dark."""
    ui.page_title(f"{title} · StrataFL")
    ui.add_head_html(_STYLE + AWAY)
    ui.colors(primary=COLOURS[0], positive=COLOURS[2], negative="#B84300")
    dark = ui.dark_mode(None)
    with ui.header().classes("items-center q-px-md q-py-xs gap-1"):
        ui.label("StrataFL").classes("text-bold q-mr-md").props("role=heading aria-level=2")
        for name, path in _NAV:
            link = ui.link(name, path)
            if path == here:
                link.props("aria-current=page")
        ui.space()
        ui.button(icon="dark_mode", on_click=lambda: _turn(dark)).props(
            'flat round color=white aria-label="Light or dark"'
        )
        if dashboard.logs_in:
            ui.html('<form method="post" action="/ui/logout"><button>Log out</button></form>', sanitize=False)
    trouble = ui.label().classes("w-full q-pa-sm rounded").props("role=alert")
    trouble.style("border-left: 5px solid #D55E00; background: rgb(213 94 0 / .12)").set_visibility(False)
    waiting = ui.row().classes("items-center")
    with waiting:
        ui.spinner(size="lg")
        ui.label("Loading")
    await ui.context.client.connected(timeout=30)
    is_dark = bool(await ui.run_javascript(_DARK_NOW, timeout=10))
    dark.set_value(is_dark)
    waiting.delete()
    yield Page(DARK if is_dark else LIGHT, trouble)


def _turn(dark: Any) -> None:
    """Pictures are drawn anew with their page."""
    value = "false" if dark.value else "true"
    ui.run_javascript(f"localStorage.setItem('strata-dark', '{value}'); location.reload()")


@contextmanager
def saying(done: str = "") -> Iterator[None]:
    """What a person asked for: says that it was done, or why not."""
    try:
        yield
    except StrataError as error:
        cause = f"{error.field}: {error.detail}" if error.field and error.field not in error.detail else error.detail
        ui.notify(cause, type="negative", multi_line=True, close_button="OK", timeout=0)
    else:
        if done:
            ui.notify(done, type="positive")


@contextmanager
def card(title: str) -> Iterator[ui.card]:
    """A part of a page under its title."""
    with ui.card().classes("w-full q-pa-md").props("flat bordered") as found:
        if title:
            ui.label(title).classes("text-subtitle1 text-bold").props("role=heading aria-level=3")
        yield found


def facts(pairs: dict[str, str]) -> None:
    """Names and values side by side."""
    with ui.element("dl").classes("facts w-full"):
        for name, value in pairs.items():
            with ui.element("div"):
                with ui.element("dt"):
                    ui.label(name)
                with ui.element("dd"):
                    ui.label(value)


class Panel:
    """Pictures that follow what they show: charts are changed in place, and made anew only if their panels change."""

    def __init__(self, look: Look, titled: bool = True) -> None:
        self.look, self.titled = look, titled
        self._box = ui.element("div").classes("w-full")
        self._kinds: tuple[str, ...] = ()
        self._shown: Picture | None = None
        self._charts: list[ui.echart] = []

    def show(self, picture: Picture | None, nothing: str = "Nothing to show yet.") -> None:
        """Show a picture, or say that there is none."""
        if picture is not None and picture == self._shown:
            return
        panels = picture.panels if picture else ()
        kinds = tuple(f"{panel.kind} {height_px(panel)}" for panel in panels)
        if picture is None or kinds != self._kinds:
            self._build(picture, nothing)
        else:
            for chart, panel in zip(self._charts, panels, strict=True):
                chart.options.clear()
                chart.options.update(options(panel, self.look))
                chart.update()
        self._kinds, self._shown = kinds, picture

    def _build(self, picture: Picture | None, nothing: str) -> None:
        self._box.clear()
        self._charts = []
        with self._box:
            if picture is None:
                ui.label(nothing).classes("text-italic q-pa-md")
                return
            if self.titled:
                ui.label(picture.title).classes("text-subtitle2")
            for panel in picture.panels:
                chart = ui.echart(options(panel, self.look)).classes("w-full")
                chart.style(f"height: {height_px(panel)}px").props("role=img")
                chart.props["aria-label"] = picture.title
                self._charts.append(chart)
