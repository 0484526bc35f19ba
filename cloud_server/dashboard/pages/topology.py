"""The topology page: the current state of cloud, edges and devices, scaling, and changes of single agents."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from nicegui import ui

from cloud_server.dashboard.forms import whole_number
from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, facts, notify_outcome, open_page
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.tables import columns_of, figure, named_score, row_of
from cloud_server.dashboard.topology_graph import graph
from cloud_server.dashboard.topology_nodes import STATES, Node, device_counts, nodes_of
from cloud_server.node_views import change_agent, topology_of
from cloud_server.nodes.twin_client import twins_of
from shared.core.bounds import LARGEST_DEVICES
from shared.core.errors import NotFound, StrataError
from shared.plots.partition import partition
from shared.run_records.metrics import value_in
from shared.service.api.nodes import AgentChange, TopologyInfo
from shared.simulation import PROFILES
from shared.simulation.digital_twin import Twin

_VISIT_COLUMNS = ("round", "outcome", "simulated time (s)", "bytes up", "bytes down", "local model")


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
        self.nodes: list[Node] = []
        self.run_view: RunView | None = None
        self.topology: TopologyInfo | None = None
        self.is_filled = False

    def build(self) -> None:
        """Create the page's elements; refreshing fills them."""
        with ui.row().classes("w-full items-center gap-4"):
            self.headline = ui.label().classes("text-h6").props("role=heading aria-level=1")
            self.run_link = ui.link("", "/runs")
            ui.space()
            self.wanted = ui.number("Devices", step=1).classes("w-28")
            self.scale = ui.button("Scale", on_click=self._scale).props("unelevated")
            self.scale_tooltip = ui.tooltip("")
            self.scale_tooltip.move(self.scale)
        self.fleet_error = ui.label().classes("text-caption")
        self.counts = ui.label().classes("text-body2").props("role=status")
        self.chart = (
            ui.echart({}, on_point_click=self._clicked).classes("w-full").style("height: 62vh; min-height: 360px")
        )
        self.chart.props(
            'role=img aria-label="Cloud, edges and devices as a graph; the table below has the same content"'
        )
        self.empty = ui.label("No edge or agent has registered yet. Start edges and devices.").classes("text-italic")
        with ui.expansion("As a table", icon="table_rows").classes("w-full"):
            columns = columns_of(("name", "tier", "state", "parent", "details"))
            self.table = ui.table(columns=columns, rows=[], row_key="key", pagination=25).classes("w-full")
            self.table.props("dense flat wrap-cells")
            self.table.on("rowClick", lambda event: self._open(event.args[1]["key"]))
            # Elements, not a template: NiceGUI makes that anew at each refresh, so clicks and the focus would be lost.
            with self.table.add_slot("body-cell-name"), ui.element("q-td").props(':props="props"'):
                name = ui.button().props('flat dense no-caps :label="props.row.name"')
            name.on("click.stop", lambda event: self._open(event.args), js_handler="() => emit(props.row.key)")
        self.page.redraws.append(lambda: self._draw(self.nodes, self.run_view))
        self.page.start_refreshing(self._refresh)

    async def _refresh(self) -> None:
        cloud = self.dashboard.cloud
        topology = await topology_of(cloud)
        run_view = await self._current_run(topology)
        nodes = nodes_of(topology, run_view)
        self._show_fleet(topology)
        self.headline.set_text(f"{len(topology.edges)} edges, {topology.n_devices} devices")
        if nodes != self.nodes:
            self._draw(nodes, run_view)
        self.nodes, self.run_view, self.topology = nodes, run_view, topology

    async def _current_run(self, topology: TopologyInfo) -> RunView | None:
        try:
            return await self.dashboard.run_views.with_seats(topology.active_run or "latest")
        except NotFound:
            return None

    def _draw(self, nodes: list[Node], run_view: RunView | None) -> None:
        self.empty.set_visibility(len(nodes) == 1)
        counts = device_counts(nodes)
        some = run_view is not None and not run_view.shows_all
        shown = [f"shown: {sum(counts.values())} devices of the newest round"] if some else []
        self.counts.set_text(" · ".join([*shown, *(f"{n} {state} ({STATES[state]})" for state, n in counts.items())]))
        self.chart.options.clear()
        self.chart.options.update(graph(nodes, self.page.theme))
        self.chart.update()
        names = {node.key: node.name for node in nodes}
        self.table.rows = [
            {
                "key": node.key,
                "name": node.name,
                "tier": node.tier,
                "state": node.state,
                "parent": names.get(node.parent or "", ""),
                "details": "; ".join(node.details),
            }
            for node in nodes
        ]
        self.table.update()
        if run_view is not None:
            info = run_view.info
            self.run_link.set_text(f"{info.name}: {info.status}, round {info.rounds} of {info.num_rounds}")
            self.run_link.props["href"] = f"/runs/{info.run}"

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

    # ---- dialog of one node

    async def _clicked(self, event: Any) -> None:
        if event.data_type == "node":
            await self._open(event.data["id"])

    async def _open(self, key: str) -> None:
        node = next((node for node in self.nodes if node.key == key), None)
        if node is None:
            return
        fill_in: Awaitable[None] | None = None
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 720px"):
            ui.label(f"{node.tier} {node.name}: {node.state}").classes("text-h6")
            for line in node.details:
                ui.label(line)
            if node.key.startswith("seat "):
                fill_in = self._build_seat(int(node.key.removeprefix("seat ")))
            elif node.key.startswith("edge "):
                self._build_twins(node.key.removeprefix("edge "))
            elif node.key.startswith("agent "):
                self._build_controls(node.key.removeprefix("agent "))
            ui.button("Close", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)
        dialog.open()  # only now: a dialog that is created open mounts its charts twice
        if fill_in is not None:
            await fill_in

    def _build_seat(self, number: int) -> Awaitable[None] | None:
        """Build the content for a seat; returns the request that adds its digital twin, if an agent hosts it."""
        run_view = self.run_view
        seat = next((seat for seat in run_view.seats if seat.seat == number), None) if run_view else None
        if run_view is None or seat is None:
            return None
        rates = {
            "compute": f"{seat.compute_sps:.4g} samples/s" if seat.compute_sps else "-",
            "uplink": f"{(seat.up_bps or 0) / 1e6:.3g} Mbit/s",
            "downlink": f"{(seat.down_bps or 0) / 1e6:.3g} Mbit/s",
            "latency": f"{1000 * (seat.latency_s or 0):.3g} ms",
        }
        facts(rates)
        if seat.agent:
            self._build_controls(seat.agent)
        with card("Samples per class"):
            Panel(self.page, titled=False).show(partition([seat], ""))
        twin = ui.column().classes("w-full items-stretch")
        with card("Visits"):
            self._build_visits(run_view, number)
        return self._show_twin(twin, run_view.info.run, seat.agent, number) if seat.agent else None

    def _build_twins(self, edge: str) -> None:
        """Build the table of an edge's digital twins, if it keeps any."""
        twins = self.run_view.twins.get(edge, ()) if self.run_view else ()
        if not twins:
            return
        rows = [{"seat": str(twin.seat), **_twin_facts(twin)} for twin in twins]
        columns = columns_of(rows[0], sortable=False)
        with card("Digital twins"):
            ui.table(columns=columns, rows=rows, row_key="seat", pagination=10).props("dense flat").classes("w-full")

    async def _show_twin(self, box: ui.column, run_id: str, agent: str, number: int) -> None:
        """Request the digital twin of a seat and show it in the box, unless the dialog has been closed meanwhile."""
        twin: Twin | None = None
        reason = ""
        try:
            (twin,) = (await twins_of(self.dashboard.cloud.registry, run_id, agent, {number})).twins
        except StrataError as error:
            reason = error.detail
        if box.is_deleted:
            return
        with box:
            if twin is None:
                ui.label(f"No digital twin: {reason}").classes("text-caption")
            else:
                with card("Digital twin"):
                    facts(_twin_facts(twin))

    def _build_visits(self, run_view: RunView, number: int) -> None:
        visits = run_view.last_visits.get(number, [])
        if not visits:
            ui.label("No visits yet.").classes("text-italic")
            return
        headline = run_view.info.headline
        rows = [
            row_of(
                {
                    "round": round_no,
                    "outcome": ", ".join(filter(None, (row.outcome, row.reason, row.label))),
                    "simulated time (s)": figure(row.simulated_s),
                    "bytes up": row.up_bytes,
                    "bytes down": row.down_bytes,
                    "local model": named_score(headline, value_in(row, "own", headline)),
                }
            )
            for round_no, row in reversed(visits)
        ]
        columns = columns_of(_VISIT_COLUMNS)
        ui.table(columns=columns, rows=rows, pagination=10).props("dense flat").classes("w-full")

    def _build_controls(self, agent: str) -> None:
        """Build the controls that take an agent offline or online and set its profile."""
        agents = self.topology.agents if self.topology else ()
        info = next((info for info in agents if info.agent == agent), None)
        if info is None:
            return
        with ui.row().classes("items-center"):
            others = f" (with {info.devices - 1} other devices of its agent)" if info.devices > 1 else ""
            action = "Take offline" if info.online else "Bring online"
            ui.button(action + others, on_click=lambda: self._change(agent, AgentChange(online=not info.online)))
            fixed = any(not info.spec.devices.by_agent for info in self.dashboard.cloud.runs.training)
            profile = ui.select(sorted(PROFILES), value=info.profile, label="Profile").classes("w-48")
            set_profile = ui.button(
                "Set profile", on_click=lambda: self._change(agent, AgentChange(profile=str(profile.value)))
            )
            if fixed:
                set_profile.disable()
                profile.disable()
                ui.label("Disabled: the run's spec sets the profiles. With devices: {profile: agent} agents set them.")

    async def _change(self, agent: str, change: AgentChange) -> None:
        with notify_outcome("Takes effect from the next round on."):
            await change_agent(self.dashboard.cloud, agent, change)


def _twin_facts(twin: Twin) -> dict[str, str]:
    """The estimates of a digital twin, formatted."""
    return {
        "health": twin.health,
        "free compute": f"{twin.telemetry.free_sps:.4g} samples/s",
        "slowdown against its profile": f"{twin.ratio:.3g} ± {twin.ratio_var**0.5:.2g}",
        "visits learned from": str(twin.n_learned),
    }
