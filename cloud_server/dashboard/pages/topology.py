"""The topology page: the current state of cloud, edges and devices, scaling, and changes of single agents."""

from __future__ import annotations

from nicegui import ui

from cloud_server.dashboard.forms import whole_number
from cloud_server.dashboard.layout import Dashboard, Page, card, notify_outcome, open_page
from cloud_server.dashboard.node_dialogs import NodeDialog
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.topology_grid import TopologyGrid, traffic
from cloud_server.dashboard.topology_nodes import Node, n_devices, n_in_run, nodes_of, visit_counts
from cloud_server.node_views import topology_of
from cloud_server.nodes.fleet import NO_FLEET
from shared.core.bounds import LARGEST_DEVICES, LARGEST_EDGES
from shared.core.errors import NotFound, StrataError
from shared.core.formatting import counted
from shared.run_records.runs import RunInfo
from shared.service.api.nodes import TopologyInfo


def register(dashboard: Dashboard) -> None:
    """Add the page."""

    @ui.page("/")
    async def topology_page(run: str = "", opened: str = "") -> None:
        async with open_page(dashboard, "Topology", "/") as page:
            try:
                shown = await page.wait_for(lambda: dashboard.cloud.runs.info(run[:300])) if run else None
            except StrataError as error:
                ui.label("Topology").classes("text-h6").props("role=heading aria-level=1")
                ui.label(error.detail).props("role=alert")
                ui.link("Topology of the newest run", "/")
                return
            View(dashboard, page, shown, opened).build()


class View:
    """The page in one browser.

    Args:
        dashboard: the data behind the page.
        page: the page.
        run: the run to show; None for the one that trains, or else the newest.
        opened: the key of the node whose dialog opens with the page; empty for none.
    """

    def __init__(self, dashboard: Dashboard, page: Page, run: RunInfo | None, opened: str) -> None:
        self.opened = opened
        self.dashboard, self.page, self.run = dashboard, page, run
        self.dialog: NodeDialog | None = None
        self.nodes: list[Node] = []
        self.run_view: RunView | None = None
        self.topology: TopologyInfo | None = None
        self.is_filled = False

    def build(self) -> None:
        """Create the page's elements; refreshing fills them."""
        with ui.row().classes("w-full items-center gap-4"):
            self.headline = ui.label().classes("text-h6").props("role=heading aria-level=1")
            ui.space()
            with ui.row().classes("items-center no-wrap gap-4"):
                self.edges = ui.number("Wanted edges", step=1).classes("w-28")
                self.wanted = ui.number("Wanted devices", step=1).classes("w-28")
                self.scale = ui.button("Scale", on_click=self._scale).props("unelevated")
            self.scale_tooltip = ui.tooltip("")
            self.scale_tooltip.move(self.scale)
        self.counts = ui.label().classes("text-caption").style("min-height: 1.5em")
        self.fleet_error = ui.label().classes("text-caption")
        if self.run:
            with ui.row().classes("items-baseline gap-x-4 gap-y-0"):
                shown = ui.label(f"This page shows run {self.run.name} ({self.run.run}).")
                shown.style("overflow-wrap: anywhere")
                ui.link("Show the run that trains, or else the newest", "/")
        with card("Cloud") as section:
            section.classes("gap-1")
            with ui.row().classes("items-baseline gap-x-4 gap-y-0"):
                self.run_link = ui.link("", "/runs")
                self.others = ui.label()
            self.visits = ui.label().style("min-height: 1.5em").props("role=status")
            self.links = ui.label().style("min-height: 1.5em")
        self.grid = TopologyGrid(self._open).classes("w-full")
        self.empty = ui.label("No edge or agent has registered yet. Start edges and devices.").classes("text-italic")
        self.page.start_refreshing(self._refresh)

    async def _refresh(self) -> None:
        topology = await topology_of(self.dashboard.cloud)
        run_view = await self._current_run(topology)
        nodes = nodes_of(topology, run_view)
        total = n_devices(topology, run_view)
        self._show_fleet(topology)
        self.headline.set_text(f"{counted(len(topology.edges), 'edge')}, {counted(total, 'device')}")
        in_run, hosts = n_in_run(topology, run_view), counted(topology.n_agents, "live agent")
        self.counts.set_text(
            f"{in_run} of them in the run shown; {hosts}, set up for {counted(topology.n_devices, 'device')}"
        )
        self._show_cloud(topology, run_view)
        self.empty.set_visibility(len(nodes) == 1)
        if nodes != self.nodes:
            self.grid.show(nodes, total - sum(node.tier == "device" for node in nodes))
        self.nodes, self.run_view, self.topology = nodes, run_view, topology
        self._show_dialog()
        if any(node.key == self.opened for node in nodes):
            self._open(self.opened)
            self.opened = ""

    async def _current_run(self, topology: TopologyInfo) -> RunView | None:
        shown = self.run.run if self.run else topology.active_run or "latest"
        try:
            return await self.dashboard.run_views.with_seats(shown)
        except NotFound:
            if self.run:
                raise
            return None

    def _show_cloud(self, topology: TopologyInfo, run_view: RunView | None) -> None:
        """Show the run and what came of the visits of its newest round."""
        shown = run_view.info.run if run_view else ""
        others = sum(run != shown for run in topology.active_runs)
        verb = "trains" if others == 1 else "train"
        self.others.set_text(f"{counted(others, 'other run')} {verb} now" if others else "")
        self.run_link.set_visibility(run_view is not None)
        if run_view is None:
            self.visits.set_text("no run yet")
            return
        info, newest = run_view.info, run_view.newest
        word = info.spec.sync.round_word
        self.run_link.set_text(f"{info.name}: {info.status}, {word} {info.rounds} of {info.num_rounds}")
        self.run_link.props["href"] = f"/runs/{info.run}"
        if newest is None:
            self.visits.set_text(f"no {word} yet")
            self.links.set_text("")
            return
        counts = ", ".join(f"{number} {state}" for state, number in visit_counts(run_view).items())
        self.visits.set_text(f"{word} {newest.round_no}: {counted(newest.n_visits, 'task')}: {counts or 'none'}")
        edges = traffic(newest.edge_bytes_up, newest.edge_bytes_down)
        devices = traffic(newest.device_bytes_up, newest.device_bytes_down)
        self.links.set_text(f"links of the edges {edges}, links of the devices {devices}")

    # ---- scaling

    def _show_fleet(self, topology: TopologyInfo) -> None:
        connected = topology.fleet is not None
        reason = "" if connected else f"{NO_FLEET[0].upper()}{NO_FLEET[1:]}."
        self.scale.set_enabled(connected)
        self.wanted.set_enabled(connected)
        self.edges.set_enabled(connected and topology.present_edges is not None)
        error = reason or (topology.fleet.error or "" if topology.fleet else "") or "; ".join(topology.notes)
        self.fleet_error.set_text(error)
        self.fleet_error.set_visibility(bool(error))
        self.scale_tooltip.set_text(
            reason
            or "Start or stop agents until those of the fleet are set up for this number; a run may place more on them."
            " A run keeps its edges until it ends."
        )
        if connected and not self.is_filled:  # once: a box that was emptied waits for another number
            self.is_filled = True
            self.wanted.set_value(sum(topology.wanted.values()) or topology.n_devices)
            self.edges.set_value(topology.wanted_edges or topology.present_edges)

    async def _scale(self) -> None:
        with notify_outcome("Requested; the fleet starts or stops agents and edges."):
            self.page.viewer.check_admin()
            wanted = whole_number("Wanted devices", self.wanted.value, 0, LARGEST_DEVICES)
            edges = whole_number("Wanted edges", self.edges.value, 1, LARGEST_EDGES) if self.edges.enabled else None
            await self.dashboard.cloud.fleet.set_wanted(wanted, edges)

    # ---- the dialog of a node

    def _open(self, key: str) -> None:
        if self.dialog is not None and self.dialog.is_open:  # a second click before the first one's answer
            return
        self.dialog = NodeDialog(self.dashboard, self.page, key, self._refresh)
        self._show_dialog()
        self.dialog.open()

    def _show_dialog(self) -> None:
        """Show the present state of its node in the dialog, if there is one."""
        if self.dialog is not None and self.topology is not None and not self.dialog.is_deleted:
            node = next((node for node in self.nodes if node.key == self.dialog.key), None)
            self.dialog.show(node, self.topology, self.run_view)
