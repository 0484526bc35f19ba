"""The parts that all pages share: navigation, dark mode, periodic refreshing, error messages, cards and charts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from nicegui import ui

from cloud_server.dashboard.charts import DARK, LIGHT, Theme, height_px, options
from cloud_server.dashboard.offline_notice import OFFLINE_NOTICE
from cloud_server.dashboard.page_style import SORTED_BY_KEYBOARD, STYLE
from cloud_server.dashboard.run_views import RunViews
from cloud_server.dashboard.viewer import Viewer, viewer_of
from shared.core.errors import StrataError
from shared.plots.curves import By
from shared.storage.key_value import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloud_server.dependencies import Cloud
    from cloud_server.runs.user_requests import UserRequests
    from shared.plots.picture import Picture

T = TypeVar("T")
log = logging.getLogger(__name__)
REFRESH_S = 1.0
"""Seconds between two refreshes of an open page."""
KEPT_S = 60.0
"""Seconds for which a page that lost its connection is kept, with all that was entered; later it is loaded anew.

NiceGUI closes the connection of a page that stands still for two fifths of this: a click on its way is lost then.
"""
DRAWN_S = 10.0
"""Longest wait for a browser to draw a refresh until it gets the next one."""
REST_S = 5.0
"""Longest rest after a refresh that took long."""
_MEASURES: dict[By, str] = {
    "round": "by round", "time": "by simulated time", "bytes": "by bytes", "wall": "by wall-clock time",
}  # fmt: skip
_NAV = (("Topology", "/"), ("Runs", "/runs"), ("New run", "/new"))
_IS_DARK = (
    "(localStorage.getItem('strata-dark') ?? String(matchMedia('(prefers-color-scheme: dark)').matches)) === 'true'"
)

# A page in the background has no frames.
_LAID_OUT = "new Promise(done => (setTimeout(done, 500), requestAnimationFrame(() => requestAnimationFrame(done))))"


class Dashboard:
    """The data behind all pages.

    Attributes:
        has_login: whether viewers log in, and so can log out.
    """

    def __init__(self, cloud: Callable[[], Cloud], *, has_login: bool) -> None:
        self._cloud, self.has_login = cloud, has_login
        self._run_views: RunViews | None = None

    @property
    def cloud(self) -> Cloud:
        """The cloud's services; available once the app has started."""
        return self._cloud()

    def requests(self, page: Page) -> UserRequests:
        """What the viewer of a page requests of runs.

        Raises:
            Unauthorised: the viewer's token was removed.
        """
        return self.cloud.requests_of(page.viewer.caller())

    @property
    def run_views(self) -> RunViews:
        """The cached runs, shared by all viewers."""
        if self._run_views is None:
            self._run_views = RunViews(self.cloud)
        return self._run_views


@dataclass
class Page:
    """One page in one browser.

    Attributes:
        error: the line that shows the current error or notice, hidden without one.
        content: what stands below it; invisible until it is built and has its first data, so that nothing jumps.
        loading: what is seen until then.
        notice: what to show there while nothing fails.
        theme: the colours of its charts.
        redraws: redraw what has the theme's colours.
        panels: the panels with charts.
        is_refreshed: whether refreshing fills it.
        viewer: who looks at it.
    """

    error: ui.label
    content: ui.element
    loading: ui.element
    notice: Callable[[], str] = str
    theme: Theme = LIGHT
    redraws: list[Callable[[], None]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    is_refreshed: bool = False
    viewer: Viewer = field(default_factory=Viewer)

    def switch(self, dark: ui.dark_mode) -> None:
        """Switch between light and dark, here and for pages that are opened later; nothing entered is lost."""
        dark.set_value(not dark.value)
        self.theme = DARK if dark.value else LIGHT
        ui.run_javascript(f"localStorage.setItem('strata-dark', '{str(dark.value).lower()}')")
        for redraw in (*self.redraws, *(panel.redraw for panel in self.panels)):
            redraw()

    def start_refreshing(self, refresh: Callable[[], Awaitable[None]], every_s: float = REFRESH_S) -> None:
        """Call `refresh` periodically while a browser shows the page. An error stays at the top until one succeeds.

        A refresh waits until the browser has drawn the one before, and then as long as that took: a slow browser, or a
        run of many rounds, has fewer refreshes, and what a viewer does comes first.
        """
        self.is_refreshed = True

        async def refresh_once() -> None:
            if not ui.context.client.has_socket_connection:
                return
            began = time.monotonic()
            try:
                self.viewer.caller()
                await refresh()
            except StrataError as error:
                self._show_error(f"Not up to date: {error.detail}")
            except Exception as error:
                log.exception("refreshing a page of the dashboard failed")
                self._show_error(f"Not up to date: {type(error).__name__}. See the cloud's log.")
            else:
                self._show_error(self.notice())
            await self.show()
            with suppress(TimeoutError):
                await ui.run_javascript("0", timeout=DRAWN_S)  # the browser answers once it has drawn what came before
            took_s = time.monotonic() - began
            timer.interval = took_s + min(max(every_s - took_s, took_s), REST_S)

        timer = ui.timer(every_s, refresh_once, immediate=True)

    async def show(self) -> None:
        """Make the content visible, once the browser has laid it out: what arrives in the same frame still jumps."""
        if "building" not in self.content.classes:
            return
        with suppress(TimeoutError):  # a browser that does not answer in time
            await ui.run_javascript(_LAID_OUT, timeout=10)
        self.content.classes(remove="building")
        self.loading.set_visibility(False)

    async def wait_for(self, load: Callable[[], Awaitable[T]]) -> T:
        """The result of `load`, without which the page cannot be built; repeats it while the store does not answer.

        Raises:
            StoreUnavailable: the viewer has closed the page.
        """
        while True:
            try:
                loaded = await load()
            except StoreUnavailable as error:
                if not ui.context.client.has_socket_connection:
                    raise
                self._show_error(f"Not loaded yet: {error.detail}")
                await asyncio.sleep(REFRESH_S)
            else:
                self._show_error("")
                return loaded

    def _show_error(self, message: str) -> None:
        self.error.set_text(message)
        self.error.set_visibility(bool(message))


@asynccontextmanager
async def open_page(dashboard: Dashboard, title: str, path: str = "") -> AsyncIterator[Page]:
    """A page with its navigation; the body of the `with` adds its content. `path` marks the current navigation link.

    Waits until the browser has reported whether it is in dark mode.

    Raises:
        CancelledError: the viewer has left before.
    """
    ui.on_exception(show_failure)
    ui.page_title(f"{title} · StrataFL")
    ui.add_head_html(STYLE + OFFLINE_NOTICE + SORTED_BY_KEYBOARD)
    ui.colors(primary="#00659e", positive="#00704f", negative="#b03f00")
    dark, viewer = ui.dark_mode(None), viewer_of(ui.context.client.request)
    with ui.header().classes("items-center q-px-md q-py-xs gap-1"):
        ui.label("StrataFL").classes("text-bold q-mr-md")
        for name, link_path in _NAV:
            link = ui.link(name, link_path)
            if link_path == path:
                link.props("aria-current=page")
        ui.space()
        ui.button(icon="dark_mode", on_click=lambda: page.switch(dark)).props(
            'flat round color=white aria-label="Switch between light and dark"'
        )
        if dashboard.has_login:
            ui.label(viewer.name).props('role=status aria-label="Logged in as"')
            ui.html('<form method="post" action="/ui/logout"><button>Log out</button></form>', sanitize=False)
    error = ui.label().classes("w-full q-pa-sm rounded").props("role=alert")
    error.style("border-left: 5px solid #D55E00; background: rgb(213 94 0 / .12)").set_visibility(False)
    loading = ui.row().classes("items-center loading")
    with loading:
        ui.spinner(size="lg")
        ui.label("Loading")
    content = ui.element("div").classes("content building")
    page: Page = Page(error, content, loading, lambda: dashboard.cloud.ownership.standing_by() or "", viewer=viewer)
    await ui.context.client.connected(timeout=30)
    try:
        is_dark = bool(await ui.run_javascript(_IS_DARK, timeout=10))
    except TimeoutError:
        if not ui.context.client.has_socket_connection:
            raise asyncio.CancelledError("the viewer has left") from None  # all else NiceGUI logs as an error
        is_dark = False
    dark.set_value(is_dark)
    page.theme = DARK if is_dark else LIGHT
    with content:
        yield page
    if not page.is_refreshed:
        await page.show()


@contextmanager
def notify_outcome(success: str = "") -> Iterator[None]:
    """Run a user's action: show `success` (if not empty) when it is done, or the error."""
    try:
        yield
    except StrataError as error:
        _notify_of_error(with_field(error))
    else:
        if success:
            ui.notify(success, type="positive")


def show_failure(error: Exception) -> None:
    """Show an error that an action of a page did not expect; NiceGUI logs it with its traceback."""
    unexpected = f"{type(error).__name__}: {error} (see the cloud's log)"
    _notify_of_error(with_field(error) if isinstance(error, StrataError) else unexpected)


def _notify_of_error(text: str) -> None:
    ui.notify(text[:1000], type="negative", multi_line=True, close_button="OK", timeout=0)


def with_field(error: StrataError) -> str:
    """What an error says, with the name of its field."""
    return f"{error.field}: {error.detail}" if error.field and error.field not in error.detail else error.detail


@contextmanager
def card(title: str) -> Iterator[ui.card]:
    """A section of a page with a title."""
    with ui.card().classes("w-full q-pa-md").props("flat bordered") as section:
        if title:
            ui.label(title).classes("text-subtitle1 text-bold").props("role=heading aria-level=2")
        yield section


def measure_switch(on_change: Callable[[By], None]) -> ui.toggle:
    """The switch for what the page's charts have to the right."""
    switch = ui.toggle(_MEASURES, value="round", on_change=lambda event: on_change(event.value))
    return switch.props('dense no-caps aria-label="Charts over"').classes("measures")


def facts(pairs: dict[str, str]) -> None:
    """A grid of names, each with its value below."""
    with ui.element("dl").classes("facts w-full"):
        for name, value in pairs.items():
            with ui.element("div"):
                with ui.element("dt"):
                    ui.label(name)
                with ui.element("dd"):
                    ui.label(value)


class Panel:
    """Shows a picture as charts. A new picture updates them in place if its panels have the same kinds and heights."""

    def __init__(self, page: Page, titled: bool = True) -> None:
        self.page, self.titled = page, titled
        self._box: ui.element = ui.element("div").classes("w-full")
        page.panels = [panel for panel in page.panels if not panel._box.is_deleted] + [self]
        self._kinds: tuple[str, ...] = ()
        self._shown: Picture | None = None
        self._charts: list[ui.echart] = []

    def show(self, picture: Picture | None, placeholder: str = "No data yet.") -> None:
        """Show a picture; the placeholder text if it is None."""
        if picture is not None and picture == self._shown:
            return
        panels = picture.panels if picture else ()
        kinds = tuple(f"{panel.kind} {height_px(panel)}" for panel in panels)
        if picture is None or kinds != self._kinds:
            self._build(picture, placeholder)
        else:
            for chart, panel in zip(self._charts, panels, strict=True):
                chart.options.clear()
                chart.options.update(options(panel, self.page.theme))
                chart.update()
        self._kinds, self._shown = kinds, picture

    def redraw(self) -> None:
        """Draw the shown picture again, in the page's present colours."""
        picture, self._shown = self._shown, None
        if picture is not None and not self._box.is_deleted:
            self.show(picture)

    def _build(self, picture: Picture | None, placeholder: str) -> None:
        self._box.clear()
        self._charts = []
        with self._box:
            if picture is None:
                ui.label(placeholder).classes("text-italic q-pa-md")
                return
            if self.titled:
                ui.label(picture.title).classes("text-subtitle2")
            for panel in picture.panels:
                with ui.element("div").style(f"height: {height_px(panel)}px"):  # before its component has loaded too
                    chart = ui.echart(options(panel, self.page.theme)).classes("w-full h-full").props("role=img")
                chart.props["aria-label"] = picture.title
                self._charts.append(chart)
