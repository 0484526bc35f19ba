"""What can be downloaded of a run: its report, its final model, the files of its results folder."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from nicegui import ui

from cloud_server.dashboard.layout import notify_outcome
from shared.core.errors import NotFound
from shared.results.folder import file_names
from shared.results.report.page import report

_MODEL = "model.safetensors"


class Downloads:
    """The buttons that download what is in a run's results folder.

    Args:
        folder: the run's results folder, which may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._report = self._button("Report", "summarize", self._send_report)
        self._model = self._button("Model", "memory", self._send_model)
        self._button("Result files", "folder_open", self._list_files)

    def _button(self, name: str, icon: str, action: object) -> ui.button:
        return ui.button(name, icon=icon, on_click=action).props("flat dense no-caps")  # type: ignore[arg-type]

    async def _send_report(self) -> None:
        """Make the report that `strata report` makes, from the results folder as it is now."""
        self._report.props("loading")
        try:
            with notify_outcome():
                page = await asyncio.to_thread(report, [self._folder])
                ui.download.content(page.encode(), f"{self._folder.name}_report.html", "text/html")
        finally:
            self._report.props(remove="loading")

    def _send_model(self) -> None:
        """Send the global model after the last round that was written."""
        path = self._folder / _MODEL
        with notify_outcome():
            if not path.is_file():
                raise NotFound("The run has no model yet: it is written after its first round.")
            ui.download.file(path, f"{self._folder.name}_{_MODEL}")

    def _list_files(self) -> None:
        """Offer the files of the results folder."""
        names = file_names(self._folder) if self._folder.is_dir() else []
        title = "Result files" if names else "No result files yet."
        with ui.dialog(value=True).props(f'aria-label="{title}"') as dialog, ui.card():
            ui.label(title).classes("text-h6").props("role=heading aria-level=2")
            for name in names:
                send = partial(ui.download.file, self._folder / name)
                ui.button(name, icon="download", on_click=send).props("flat no-caps")
            ui.button("Close", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)
