"""The dialogs of the topology page: an edge or a device, its data, visits, digital twins and controls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, facts, notify_outcome
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.tables import Figure, columns_of, figure, named_score, row_of
from cloud_server.dashboard.topology_nodes import Node, outcome_of
from cloud_server.node_views import change_agent
from shared.core.formatting import counted, duration, size
from shared.plots.partition import partition
from shared.run_records.metrics import value_in
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import PARTS
from shared.runtime.cpu_use import CpuUse
from shared.service.api.nodes import AgentChange, AgentInfo, TopologyInfo
from shared.simulation import PROFILES
from shared.simulation.digital_twin import Twin

_STAYS_AT_THE_TOP = (
    "position: sticky; top: -1rem; z-index: 1; align-self: stretch; background: inherit; "
    "margin: -1rem -1rem 0; padding: 1rem 1rem .25rem"
)
"""Also while the dialog scrolls, over the whole width of its card, whose padding is 1 rem."""


class NodeDialog:
    """The dialog of a node. It is built once and then changed in place, so that a refresh takes no focus and no click.

    Args:
        dashboard: the data behind the page.
        page: the page.
        key: the key of the node.
        refresh: refreshes the page, and with it the dialog.
    """

    def __init__(self, dashboard: Dashboard, page: Page, key: str, refresh: Callable[[], Awaitable[None]]) -> None:
        self.key = key
        with ui.dialog() as self.dialog, ui.card().classes("w-full").style("max-width: 960px"):
            with ui.row().classes("no-wrap items-start justify-between").style(_STAYS_AT_THE_TOP):
                self.title = ui.label().classes("text-h6").props("role=heading aria-level=2")
                ui.button(icon="close", on_click=self.dialog.close).props('flat round dense aria-label="Close"')
            self.details = ui.label().style("white-space: pre-line")
            self.rates = _Facts()
            self.controls = _Controls(dashboard, page, refresh)
            self.visits = _Table("Tasks", "No tasks yet.")
            with card("Digital twin") as self.twin_card:
                self.twin = _Facts()
            self.twins = _Table("Digital twins", "")
            with card("Samples per class") as self.samples_card:
                self.samples = Panel(page, titled=False)
        self.dialog.on("hide", self.dialog.delete)

    @property
    def is_open(self) -> bool:
        """Whether it is open; one that the viewer has closed is not, although it fades out before it is deleted."""
        return bool(self.dialog.value)

    @property
    def is_deleted(self) -> bool:
        """Whether it was closed and has faded out."""
        return self.dialog.is_deleted

    def open(self) -> None:
        """Open it once it has content: a dialog that is created open mounts its charts twice."""
        self.dialog.open()

    def show(self, node: Node | None, topology: TopologyInfo, run_view: RunView | None) -> None:
        """Show the present state of the node; a node that is gone keeps its last one, below a title that says so."""
        if node is None:
            self.title.set_text(f"{self.title.text.partition(':')[0]}: not on this page now")
            return
        self.title.set_text(node.title)
        self.dialog.props["aria-label"] = node.title
        self.details.set_text("\n".join(node.details))
        seat = _seat_of(node, run_view)
        self.rates.show(_rates(seat) if seat else {})
        agent = next((agent for agent in topology.agents if agent.agent == node.agent), None)
        self.controls.show(agent, run_view)
        self.visits.show(_visit_rows(run_view, seat) if run_view and seat else None)
        twins = _twins_of(node, seat, run_view)
        self.twin.show(_twin_facts(twins[0]) if seat and twins else {})
        self.twin_card.set_visibility(bool(seat and twins))
        self.twins.show([{"device": twin.seat, **_twin_facts(twin)} for twin in twins] if twins and not seat else None)
        self.samples_card.set_visibility(seat is not None)
        if seat is not None:
            self.samples.show(partition([seat], ""))


class _Facts:
    """Names with their values; they have no controls, so other ones replace them."""

    def __init__(self) -> None:
        self.box = ui.element("div").classes("w-full")
        self.pairs: dict[str, str] = {}

    def show(self, pairs: dict[str, str]) -> None:
        self.box.set_visibility(bool(pairs))
        if pairs != self.pairs:
            self.pairs = pairs
            self.box.clear()
            with self.box:
                facts(pairs)


class _Table:
    """A card with a table, hidden while it has no rows to show (None)."""

    def __init__(self, title: str, empty: str) -> None:
        with card(title) as self.card:
            self.table = ui.table(rows=[], pagination=10).classes("w-full").props("dense flat")
        self.table.props["no-data-label"] = empty

    def show(self, rows: list[dict[str, Any]] | None) -> None:
        self.card.set_visibility(rows is not None)
        if rows is not None and rows != self.table.rows:
            self.table.columns = columns_of(name for name in rows[0] if name != "shown") if rows else []
            self.table.rows = rows


class _Controls:
    """The controls that take an agent offline or online and set its profile."""

    def __init__(self, dashboard: Dashboard, page: Page, refresh: Callable[[], Awaitable[None]]) -> None:
        self.cloud, self.page, self.refresh = dashboard.cloud, page, refresh
        self.info: AgentInfo | None = None
        with ui.row().classes("items-center") as self.row:
            self.switch = ui.button(on_click=self._switch)
            self.profile = ui.select(sorted(PROFILES), label="Profile of the agent").classes("w-48")
            self.set_profile = ui.button("Set profile", on_click=self._set_profile)
            self.fixed = ui.label()

    def show(self, info: AgentInfo | None, run_view: RunView | None) -> None:
        """Show an agent; a profile that the viewer has chosen stays until the agent's own one changes."""
        self.row.set_visibility(info is not None)
        if info is None:
            return
        n_others = max(info.devices, len(info.seats)) - 1
        others = f" (with {counted(n_others, 'other device')} of its agent)" if n_others > 0 else ""
        self.switch.set_text(("Take offline" if info.online else "Bring online") + others)
        is_fixed = any(not run.spec.devices.by_agent for run in self.cloud.runs.training)
        self.profile.set_enabled(not is_fixed)
        self.set_profile.set_enabled(not is_fixed)
        own = run_view is not None and not run_view.info.spec.devices.by_agent
        disabled = "Disabled: the run's spec sets the profiles, not its agents (devices: {profile: agent})."
        shown = "The spec of the run shown sets the profiles, not the agents (devices: {profile: agent})."
        self.fixed.set_text(disabled if is_fixed else shown if own else "")
        self.fixed.set_visibility(is_fixed or own)
        if self.info is None or info.profile != self.info.profile:
            self.profile.set_value(info.profile)
        self.info = info

    async def _switch(self) -> None:
        if self.info is not None:
            idle = "Runs leave its devices out now." if self.info.online else "Runs use its devices again."
            await self._change(self.info.agent, AgentChange(online=not self.info.online), idle)

    async def _set_profile(self) -> None:
        if self.info is not None:
            idle = "Takes effect in runs whose spec names no profile, or agent."
            await self._change(self.info.agent, AgentChange(profile=str(self.profile.value)), idle)

    async def _change(self, agent: str, change: AgentChange, idle: str) -> None:
        """Change an agent; `idle` says what that does while no run trains."""
        with notify_outcome("Takes effect from the next round on." if self.cloud.runs.training else idle):
            self.page.viewer.check_admin()
            await change_agent(self.cloud, agent, change)
            await self.refresh()


def _seat_of(node: Node, run_view: RunView | None) -> SeatInfo | None:
    """The seat of a device that is in the run."""
    return next((seat for seat in run_view.seats if node.key == f"seat {seat.seat}"), None) if run_view else None


def _twins_of(node: Node, seat: SeatInfo | None, run_view: RunView | None) -> Sequence[Twin]:
    """The digital twins that an edge keeps; of a seat its newest one. None but while a run with twins is running."""
    if run_view is None:
        return ()
    if seat is None:
        return run_view.twins.get(node.name, ()) if node.tier == "edge" else ()
    own = [twin for twins in run_view.twins.values() for twin in twins if twin.seat == seat.seat]
    return sorted(own, key=lambda twin: twin.telemetry.at_s)[-1:]


def _rates(seat: SeatInfo) -> dict[str, str]:
    return {
        "compute": f"{seat.compute_sps:.4g} samples/s of the reference model" if seat.compute_sps else "-",
        "uplink": f"{(seat.up_bps or 0) / 1e6:.3g} Mbit/s",
        "downlink": f"{(seat.down_bps or 0) / 1e6:.3g} Mbit/s",
        "latency": f"{1000 * (seat.latency_s or 0):.3g} ms",
    }


def _twin_facts(twin: Twin) -> dict[str, str]:
    """The estimates of a digital twin, formatted."""
    return {
        "health": twin.health,
        "free compute": f"{twin.telemetry.free_sps:.4g} samples/s of the reference model",
        **({"CPUs of its container": _cpus(twin.telemetry.cpu)} if twin.telemetry.cpu else {}),
        "slowdown against its profile": f"{twin.ratio:.3g} ± {twin.ratio_var**0.5:.2g}",
        "tasks learned from": str(twin.n_learned),
        **_last_plan(twin),
    }


def _cpus(cpu: CpuUse) -> str:
    return f"{cpu.limit:.3g}, of which others used {max(cpu.used - cpu.own, 0):.2g}"


def _last_plan(twin: Twin) -> dict[str, str]:
    """What a twin knew by messages when its last task was planned, beside what the task had."""
    seen = twin.history[-1] if twin.history else None
    if seen is None or seen.telemetry_age_s is None or seen.estimated_sps is None:
        return {}
    found = {
        "telemetry at its last task": f"{duration(seen.telemetry_age_s)} old",
        "estimated": f"{seen.estimated_sps:.4g}",
    }
    return found | ({} if seen.actual_sps is None else {"actual": f"{seen.actual_sps:.4g}"})


def _visit_rows(run_view: RunView, seat: SeatInfo) -> list[dict[str, Any]]:
    """The latest visits of a seat, the newest first."""
    headline, sync = run_view.info.headline, run_view.info.spec.sync
    return [
        row_of(
            {
                sync.round_word: round_no,
                "ended": outcome_of(row),
                **({"versions old": row.staleness} if sync.devices.asynchronous else {}),
                "simulated time": figure(row.simulated_s, "s"),
                **{part: figure(getattr(row, field), "s") for part, field in PARTS},
                "bytes up": Figure(row.up_bytes, size(row.up_bytes)),
                "bytes down": Figure(row.down_bytes, size(row.down_bytes)),
                "own model": named_score(headline, value_in(row, "own", headline)),
            }
        )
        for round_no, row in reversed(run_view.last_visits.get(seat.seat, []))
    ]
