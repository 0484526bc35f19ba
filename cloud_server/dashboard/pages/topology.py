"""The topology page: the current state of cloud, edges and devices, scaling, and changes of single agents."""

from __future__ import annotations

from nicegui import ui

from cloud_server.dashboard.forms import whole_number
from cloud_server.dashboard.layout import Dashboard, Page, card, notify_outcome, open_page
from cloud_server.dashboard.node_dialogs import NodeDialogs
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.topology_grid import TopologyGrid, traffic
from cloud_server.dashboard.topology_nodes import Node, n_devices, nodes_of, visit_counts
from cloud_server.node_views import topology_of
from shared.core.bounds import LARGEST_DEVICES
from shared.core.errors import NotFound
from shared.service.api.nodes import TopologyInfo


def register(dashboard: Dashboard) -> None:
    """Add the page."""

    @ui.page("/")
    async def topology_page() -> None:
        async with open_page(dashboard, "Topology", "/") as page:
            View(dashboard, page).build()


class View:
    """The page in one browser."""

    def __init__(self, dashboard: Dashboard, page: Page) -> None:
        self.dashboard, self.page = dashboard, page
        self.dialogs = NodeDialogs(dashboard, page)
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
                self.wanted = ui.number("Devices", step=1).classes("w-28")
                self.scale = ui.button("Scale", on_click=self._scale).props("unelevated")
            self.scale_tooltip = ui.tooltip("")
            self.scale_tooltip.move(self.scale)
        self.fleet_error = ui.label().classes("text-caption")
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
        self.headline.set_text(f"{_count(len(topology.edges), 'edge')}, {_count(total, 'device')}")
        self._show_cloud(topology, run_view)
        self.empty.set_visibility(len(nodes) == 1)
        if nodes != self.nodes:
            self.grid.show(nodes, total - sum(node.tier == "device" for node in nodes))
        self.nodes, self.run_view, self.topology = nodes, run_view, topology

    async def _current_run(self, topology: TopologyInfo) -> RunView | None:
        try:
            return await self.dashboard.run_views.with_seats(topology.active_run or "latest")
        except NotFound:
            return None

    def _show_cloud(self, topology: TopologyInfo, run_view: RunView | None) -> None:
        """Show the run that trains, or else the newest, and what came of the visits of its newest round."""
        others = len(topology.active_runs) - 1
        self.others.set_text(f"{_count(others, 'other run')} trains too" if others > 0 else "")
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
            return
        counts = ", ".join(f"{number} {state}" for state, number in visit_counts(run_view).items())
        self.visits.set_text(f"{word} {newest.round_no}: {_count(newest.n_visits, 'visit')}: {counts or 'none'}")
        edges = traffic(newest.edge_bytes_up, newest.edge_bytes_down)
        devices = traffic(newest.device_bytes_up, newest.device_bytes_down)
        self.links.set_text(f"links of the edges {edges}, links of the devices {devices}")

    # ---- scaling

    def _show_fleet(self, topology: TopologyInfo) -> None:
        connected = topology.fleet is not None
        reason = "" if connected else "No fleet is connected (start one: docker compose --profile scale up fleet)."
        self.scale.set_enabled(connected)
        self.wanted.set_enabled(connected)
        self.fleet_error.set_text(reason or (topology.fleet.error or "" if topology.fleet else ""))
        self.scale_tooltip.set_text(reason or "Start or stop devices to reach this number.")
        if connected and not self.is_filled:  # once: a box that was emptied waits for another number
            self.is_filled = True
            self.wanted.set_value(sum(topology.wanted.values()) or topology.n_devices)

    async def _scale(self) -> None:
        with notify_outcome("Requested; the fleet starts or stops agents."):
            wanted = whole_number("Devices", self.wanted.value, 0, LARGEST_DEVICES)
            await self.dashboard.cloud.fleet.set_wanted_devices(wanted)

    async def _open(self, key: str) -> None:
        node = next((node for node in self.nodes if node.key == key), None)
        if node is not None and self.topology is not None:
            await self.dialogs.open(node, self.topology, self.run_view)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
