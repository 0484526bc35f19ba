"""The dialogs of the topology page: an edge or a device, its data, visits, digital twins and controls."""

from __future__ import annotations

from collections.abc import Awaitable

from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, facts, notify_outcome
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.tables import columns_of, figure, named_score, row_of
from cloud_server.dashboard.topology_nodes import Node, outcome_of
from cloud_server.node_views import change_agent
from cloud_server.nodes.twin_client import twins_of
from shared.core.errors import StrataError
from shared.plots.partition import partition
from shared.run_records.metrics import value_in
from shared.service.api.nodes import AgentChange, TopologyInfo
from shared.simulation import PROFILES
from shared.simulation.digital_twin import Twin


class NodeDialogs:
    """Opens the dialog of a node, with the state of the page at that instant."""

    def __init__(self, dashboard: Dashboard, page: Page) -> None:
        self.dashboard, self.page = dashboard, page
        self.run_view: RunView | None = None
        self.topology: TopologyInfo | None = None

    async def open(self, node: Node, topology: TopologyInfo, run_view: RunView | None) -> None:
        """Open the dialog of a node; what edges have to be asked for is filled in later."""
        self.topology, self.run_view = topology, run_view
        fill_in: Awaitable[None] | None = None
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 720px"):
            title = ui.label(f"{node.tier} {node.name}: {node.state}".removeprefix("edge "))
            title.classes("text-h6").props("role=heading aria-level=2")
            ui.label("\n".join(node.details)).style("white-space: pre-line")
            kind, _, rest = node.key.partition(" ")
            if kind == "seat":
                fill_in = self._build_seat(int(rest))
            elif kind == "edge":
                self._build_twins(rest)
            elif kind == "agent":
                self._build_controls(rest.rpartition(" ")[0])
            ui.button("Close", on_click=dialog.close).props("flat")
        dialog.props["aria-label"] = title.text
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
        with card("Visits"):
            self._build_visits(run_view, number)
        twin = ui.column().classes("w-full items-stretch")
        with card("Samples per class"):
            Panel(self.page, titled=False).show(partition([seat], ""))
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
        headline, sync = run_view.info.headline, run_view.info.spec.sync
        rows = [
            row_of(
                {
                    sync.round_word: round_no,
                    "outcome": outcome_of(row),
                    **({"versions old": row.staleness} if sync.devices.asynchronous else {}),
                    "simulated time (s)": figure(row.simulated_s),
                    "bytes up": row.up_bytes,
                    "bytes down": row.down_bytes,
                    "local model": named_score(headline, value_in(row, "own", headline)),
                }
            )
            for round_no, row in reversed(visits)
        ]
        columns = columns_of(name for name in rows[0] if name != "shown")
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
