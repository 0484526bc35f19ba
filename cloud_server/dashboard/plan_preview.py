"""What a run would be, shown beside its spec before it is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from cloud_server.dashboard.layout import with_field
from cloud_server.runs.planner import Planner
from shared.core.errors import StrataError


class PlanPreview:
    """A button, and below it the plan of the spec as it was at the last click.

    Args:
        planner: makes the plan.
        read: returns the spec; raises a `StrataError` where it cannot be read.
        caller: returns the user who looks at it, None for the administrator; raises where the token was removed.
    """

    def __init__(
        self, planner: Planner, read: Callable[[], Mapping[str, Any]], caller: Callable[[], str | None]
    ) -> None:
        self.planner, self.read, self.caller = planner, read, caller
        self.of: Mapping[str, Any] | None = None  # the spec whose plan is shown
        self.button = ui.button("Show plan", icon="fact_check", on_click=self._show).props("flat no-caps")
        self.lines = ui.column().classes("w-full gap-1").props('role=status aria-label="Plan"')

    async def _show(self) -> None:
        self.button.props("loading")
        try:
            spec = self.read()
            lines = (await self.planner.plan(spec, self.caller())).lines
        except StrataError as error:
            spec, lines = {}, (with_field(error),)
        finally:
            self.button.props(remove="loading")
        self._put(spec, lines)

    def changed(self, spec: Mapping[str, Any]) -> None:
        """Take away the plan of another spec."""
        if self.of is not None and self.of != spec:
            self._put(None, ())

    def _put(self, of: Mapping[str, Any] | None, lines: tuple[str, ...]) -> None:
        self.of = of
        self.lines.clear()
        with self.lines:
            for line in lines:
                is_idle = line.startswith("without effect")
                label = ui.label(line).classes("text-caption").style("overflow-wrap: anywhere")
                if is_idle:
                    label.style("border-left: 5px solid #E69F00; padding-left: 8px")
