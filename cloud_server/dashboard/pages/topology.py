"""The topology as it lives: who trains, waits, is late, was refused, is lost; and changing who is there."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, facts, open_page, saying
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.topology_graph import graph
from cloud_server.dashboard.topology_view import STATES, Node, counted, topology_view
from cloud_server.nodes.twins import twins_of
from cloud_server.topology import change_device, topology_of
from shared.core.errors import NotFound, StrataError
from shared.plots.partition import partition
from shared.service.api.nodes import DeviceChange, TopologyInfo
from shared.simulation import PROFILES
from shared.simulation.digital_twin import Twin

_HISTORY = ("round", "outcome", "seconds", "up", "down", "accuracy")


def register(dashboard: Dashboard) -> None:
    """Serve the page."""

    @ui.page("/")
    async def page() -> None:
        async with open_page(dashboard, "Topology", "/") as on:
            View(dashboard, on).build()


class View:
    """The page in one browser."""

    def __init__(self, dashboard: Dashboard, on: Page) -> None:
        self.dashboard, self.on = dashboard, on
        self.nodes: list[Node] = []
        self.watched: RunView | None = None
        self.topology: TopologyInfo | None = None

    def build(self) -> None:
        """Lay the page out; it fills itself."""
        with ui.row().classes("w-full items-center gap-4"):
            self.headline = ui.label().classes("text-h6").props("role=heading aria-level=1")
            self.run_link = ui.link("", "/runs")
            ui.space()
            self.wanted = ui.number("Devices", min=0, step=1, format="%d").classes("w-28")
            self.scale = ui.button("Scale", on_click=self._scale).props("unelevated")
            self.why_not = ui.tooltip("")
            self.why_not.move(self.scale)
        self.no_fleet = ui.label().classes("text-caption")
        self.counts = ui.label().classes("text-body2").props("role=status")
        self.chart = (
            ui.echart({}, on_point_click=self._clicked).classes("w-full").style("height: 62vh; min-height: 360px")
        )
        self.chart.props('role=img aria-label="Cloud, edges and devices as a graph; the table below says the same"')
        self.empty = ui.label("Nobody has registered yet: start edges and devices.").classes("text-italic")
        with ui.expansion("As a table", icon="table_rows").classes("w-full"):
            columns = [
                {"name": name, "label": name, "field": name, "align": "left", "sortable": True}
                for name in ("name", "tier", "state", "above", "words")
            ]
            self.table = ui.table(columns=columns, rows=[], row_key="key", pagination=25).classes("w-full")
            self.table.props("dense flat wrap-cells")
            self.table.on("rowClick", lambda event: self._open(event.args[1]["key"]))
            self.table.add_slot(
                "body-cell-name",
                '<q-td :props="props"><q-btn flat dense no-caps color="primary" :label="props.row.name" '
                "@click.stop=\"$parent.$emit('open', props.row.key)\" /></q-td>",
            )
            self.table.on("open", lambda event: self._open(event.args))
        self.on.keep_up(self._refresh)

    async def _refresh(self) -> None:
        cloud = self.dashboard.cloud
        topology = await topology_of(cloud)
        watched = await self._watched(topology)
        nodes = topology_view(topology, watched)
        self._fleet(topology)
        self.headline.set_text(f"{len(topology.edges)} edges, {topology.n_devices} devices")
        if nodes != self.nodes:
            self._draw(nodes, watched)
        self.nodes, self.watched, self.topology = nodes, watched, topology

    async def _watched(self, topology: TopologyInfo) -> RunView | None:
        try:
            return await self.dashboard.run_views.seated(topology.active_run or "latest")
        except NotFound:
            return None

    def _draw(self, nodes: list[Node], watched: RunView | None) -> None:
        self.empty.set_visibility(len(nodes) == 1)
        counts = counted(nodes)
        self.counts.set_text(" · ".join(f"{n} {state} ({STATES[state]})" for state, n in counts.items()))
        self.chart.options.clear()
        self.chart.options.update(graph(nodes, self.on.look))
        self.chart.update()
        above = {node.key: node.name for node in nodes}
        self.table.rows = [
            {
                "key": node.key,
                "name": node.name,
                "tier": node.tier,
                "state": node.state,
                "above": above.get(node.above or "", ""),
                "words": "; ".join(node.words),
            }
            for node in nodes
        ]
        self.table.update()
        if watched is not None:
            info = watched.info
            self.run_link.set_text(f"{info.name}: {info.status}, round {info.rounds} of {info.num_rounds}")
            self.run_link.props(f'href="/ui/runs/{info.run}"')

    # ---- how many

    def _fleet(self, topology: TopologyInfo) -> None:
        there = topology.fleet is not None
        why = (
            ""
            if there
            else "No fleet is heard that could start and stop devices (docker compose --profile scale up fleet)."
        )
        self.scale.set_enabled(there)
        self.wanted.set_enabled(there)
        self.no_fleet.set_text(why or (topology.fleet.error or "" if topology.fleet else ""))
        self.why_not.set_text(why or "Start or stop devices until there are so many.")
        if self.wanted.value is None and there:
            self.wanted.set_value(sum(topology.wanted.values()) or topology.n_devices)

    async def _scale(self) -> None:
        with saying(f"{int(self.wanted.value or 0)} devices are wanted; the fleet works on it."):
            await self.dashboard.cloud.fleet.want(int(self.wanted.value or 0))

    # ---- one of them

    async def _clicked(self, event: Any) -> None:
        if event.data_type == "node":
            await self._open(event.data["id"])

    async def _open(self, key: str) -> None:
        node = next((node for node in self.nodes if node.key == key), None)
        if node is None:
            return
        asking: Awaitable[None] | None = None
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 720px"):
            ui.label(f"{node.tier} {node.name}: {node.state}").classes("text-h6")
            for line in node.words:
                ui.label(line)
            if node.key.startswith("seat "):
                asking = self._seat(int(node.key.removeprefix("seat ")))
            elif node.key.startswith("edge "):
                self._twins(node.key.removeprefix("edge "))
            elif node.key.startswith("agent "):
                self._changes(node.key.removeprefix("agent "))
            ui.button("Close", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)
        dialog.open()  # with all that is in it: a dialog that is born open mounts its charts twice
        if asking is not None:
            await asking

    def _seat(self, number: int) -> Awaitable[None] | None:
        """What is known of a seat; answers with what is still to be asked, of its edge."""
        watched = self.watched
        seat = next((seat for seat in watched.seats if seat.seat == number), None) if watched else None
        if watched is None or seat is None:
            return None
        rates = {
            "compute": f"{seat.compute_sps:.4g} samples/s" if seat.compute_sps else "-",
            "up": f"{(seat.up_bps or 0) / 1e6:.3g} Mbit/s",
            "down": f"{(seat.down_bps or 0) / 1e6:.3g} Mbit/s",
            "latency": f"{1000 * (seat.latency_s or 0):.3g} ms",
        }
        facts(rates)
        if seat.agent:
            self._changes(seat.agent)
        with card("Samples by class"):
            Panel(self.on.look, titled=False).show(partition([seat], ""))
        twin = ui.column().classes("w-full items-stretch")
        with card("Visits"):
            self._past(watched, number)
        return self._twin(twin, watched.info.run, seat.agent, number) if seat.agent else None

    def _twins(self, edge: str) -> None:
        """What an edge knows of its workers, where it keeps digital twins."""
        twins = self.watched.twins.get(edge, ()) if self.watched else ()
        if not twins:
            return
        rows = [{"seat": str(twin.seat), **_told(twin)} for twin in twins]
        columns = [{"name": name, "label": name, "field": name, "align": "left"} for name in rows[0]]
        with card("Digital twins"):
            ui.table(columns=columns, rows=rows, row_key="seat", pagination=10).props("dense flat").classes("w-full")

    async def _twin(self, box: ui.column, run_id: str, agent: str, number: int) -> None:
        """Fill the box, if it is still there once the edges have answered."""
        told: Twin | str
        try:
            (told,) = (await twins_of(self.dashboard.cloud.registry, run_id, agent, {number})).twins
        except StrataError as error:
            told = f"No digital twin: {error.detail}"
        if box.is_deleted:
            return
        with box:
            if isinstance(told, str):
                ui.label(told).classes("text-caption")
            else:
                with card("Digital twin"):
                    facts(_told(told))

    def _past(self, watched: RunView, number: int) -> None:
        past = watched.history.get(number, [])
        if not past:
            ui.label("None yet.").classes("text-italic")
            return
        rows = [
            {
                "round": round_no,
                "outcome": ", ".join(filter(None, (row.outcome, row.reason, row.label))),
                "seconds": f"{row.simulated_s:.4g}",
                "up": row.up_bytes,
                "down": row.down_bytes,
                "accuracy": "" if row.own_accuracy is None else f"{row.own_accuracy:.1%}",
            }
            for round_no, row in reversed(past)
        ]
        columns = [{"name": name, "label": name, "field": name, "align": "left"} for name in _HISTORY]
        ui.table(columns=columns, rows=rows, pagination=10).props("dense flat").classes("w-full")

    def _changes(self, agent: str) -> None:
        """Take an agent offline or back, give it another profile."""
        found = next((one for one in self.topology.devices if one.agent == agent), None) if self.topology else None
        if found is None:
            return
        with ui.row().classes("items-center"):
            more = f" (and {found.devices - 1} other devices of its agent)" if found.devices > 1 else ""
            word = "Take offline" if found.online else "Bring back"
            ui.button(word + more, on_click=lambda: self._change(agent, DeviceChange(online=not found.online)))
            curve = self.dashboard.cloud.runs.executor
            fixed = curve is not None and not curve.info.spec.devices.by_agent
            profile = ui.select(sorted(PROFILES), value=found.profile, label="Profile").classes("w-48")
            slow = ui.button(
                "Set profile", on_click=lambda: self._change(agent, DeviceChange(profile=str(profile.value)))
            )
            if fixed:
                slow.disable()
                profile.disable()
                ui.label(
                    "The run's spec says which profiles its seats have; agents' count with devices: {profile: agent}."
                )

    async def _change(self, agent: str, change: DeviceChange) -> None:
        with saying("Counts from the next round on."):
            await change_device(self.dashboard.cloud, agent, change)


def _told(twin: Twin) -> dict[str, str]:
    """A digital twin in words."""
    return {
        "health": twin.health,
        "free compute": f"{twin.telemetry.free_sps:.4g} samples/s",
        "slower than said": f"{twin.ratio:.3g} ± {twin.ratio_var**0.5:.2g}",
        "visits seen": str(twin.n_learned),
    }
