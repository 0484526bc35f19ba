"""Start a run: from a form that the spec's schema makes, from a spec file, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml
from nicegui import events, ui

from cloud_server.dashboard.forms import FormField, fields_of, filled, with_value
from cloud_server.dashboard.layout import Dashboard, Page, card, open_page, saying
from shared.core import parsing
from shared.core.errors import BadInput, StrataError
from shared.federation.registry import all_algorithms
from shared.federation.spec_parser import parse_run_spec
from shared.spec.run import RunSpec

_FIRST = ("name", "seed", "num_rounds", "edge_rounds", "num_edges", "num_devices", "local_epochs", "batch_size", "lr")
_LINES = ("data", "model", "partition", "devices")
_APART = ("algorithm",)
_WRAPPING_BYTES = 1024
"""What an upload adds to its file."""


def register(dashboard: Dashboard) -> None:
    """Serve the page."""

    @ui.page("/new")
    async def page() -> None:
        async with open_page(dashboard, "New run", "/new") as on:
            View(dashboard, on).build()


class View:
    """The page in one browser: the text of the spec is what counts, and the form writes it."""

    def __init__(self, dashboard: Dashboard, on: Page) -> None:
        self.dashboard, self.on = dashboard, on
        self.document: dict[str, Any] = {"name": "experiment"}
        self.fields = {field.name: field for field in fields_of(RunSpec.model_json_schema())}

    def build(self) -> None:
        """Lay the page out."""
        most = max(self.dashboard.cloud.settings.max_spec_bytes - _WRAPPING_BYTES, 1)
        ui.label("New run").classes("text-h6").props("role=heading aria-level=1")
        with ui.element("div").classes("wide w-full"):
            with ui.column().classes("items-stretch"):
                self.form = ui.column().classes("w-full items-stretch")
            with card("The spec"):
                ui.upload(
                    label="From a spec file (YAML or JSON)",
                    auto_upload=True,
                    max_file_size=most,
                    on_upload=self._uploaded,
                    on_rejected=lambda: ui.notify(f"no YAML or JSON file of at most {most:,} bytes", type="negative"),
                ).props('accept=".yaml,.yml,.json" flat bordered').classes("w-full")
                self.text = (
                    ui.textarea(value=_text(self.document))
                    .classes("w-full")
                    .props('outlined input-style="font-family: monospace; min-height: 20rem" aria-label="Spec as YAML"')
                )
                self.text.on("blur", self._typed)
                self.wrong = ui.label().props("role=alert").style("border-left: 5px solid #D55E00; padding-left: 8px")
                ui.button("Start", icon="play_arrow", on_click=self._start).props("unelevated").mark("start")
        self._show_form()
        self._check()

    # ---- the form

    def _show_form(self) -> None:
        self.form.clear()
        with self.form:
            with card("Experiment"), ui.element("div").classes("facts"):
                for name in _FIRST:
                    self._input(self.fields[name], (name,), self.document.get(name))
            with card("Algorithm"):
                self._algorithm()
            with card("Data, model, devices"):
                for name in _LINES:
                    self._input(self.fields[name], (name,), self.document.get(name))
            with card(""), ui.expansion("All other fields").classes("w-full"), ui.element("div").classes("facts"):
                for name, field in self.fields.items():
                    if name not in (*_FIRST, *_LINES, *_APART):
                        self._input(field, (name,), self.document.get(name))

    def _algorithm(self) -> None:
        raw = self.document.get("algorithm", "fedavg")
        name = raw if isinstance(raw, str) else str(raw.get("name", "fedavg")) if isinstance(raw, Mapping) else "fedavg"
        known = all_algorithms()
        choice = ui.select(sorted(known), value=name if name in known else "fedavg", label="algorithm", with_input=True)
        choice.on_value_change(lambda event: self._chose(str(event.value))).classes("w-64")
        if name in known:
            ui.label(known[name].paper).classes("text-caption")
            params = raw.get("params", {}) if isinstance(raw, Mapping) else {}
            with ui.element("div").classes("facts"):
                for field in fields_of(known[name].params.model_json_schema()):
                    self._input(field, ("algorithm", "params", field.name), params.get(field.name))

    def _chose(self, name: str) -> None:
        self.document = {**self.document, "algorithm": {"name": name}}
        self._write()
        self._show_form()

    def _input(self, field: FormField, path: tuple[str, ...], value: Any) -> None:
        """The input of a field: what it holds goes into the document."""

        def taken(event: events.ValueChangeEventArguments[Any]) -> None:
            try:
                found = filled(field, event.value)
            except BadInput as error:
                self.wrong.set_text(error.detail)
                return
            self.document = with_value(self.document, path, field.default if found is None else found, field.default)
            if path[0] == "algorithm" and isinstance(self.document.get("algorithm"), dict):
                self.document["algorithm"].setdefault("name", "fedavg")
            self._write()

        _INPUTS[field.kind](field, field.default if value is None else value, taken)

    # ---- the text

    def _write(self) -> None:
        self.text.set_value(_text(self.document))
        self._check()

    async def _uploaded(self, event: events.UploadEventArguments) -> None:
        content = await event.file.read()
        self.text.set_value(content.decode("utf-8", "replace"))
        self._typed()

    def _typed(self) -> None:
        if self._check():
            self._show_form()

    def _read(self) -> dict[str, Any]:
        raw = parsing.load(self.text.value or "", "the spec")
        if not isinstance(raw, dict):
            raise BadInput("the spec is a mapping of fields to values")
        return raw

    def _check(self) -> bool:
        """Whether the text is a spec; says why not."""
        try:
            raw = self._read()
            parse_run_spec(raw)
        except StrataError as error:
            self.wrong.set_text(f"{error.field}: {error.detail}" if error.field else error.detail)
            return False
        self.document = raw
        self.wrong.set_text("")
        return True

    async def _start(self) -> None:
        with saying():
            info = await self.dashboard.cloud.runs.create(self._read(), None)
            ui.navigate.to(f"/runs/{info.run}")


def _text(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, default_flow_style=False)


Taken = Callable[[events.ValueChangeEventArguments[Any]], None]


def _number(field: FormField, value: Any, taken: Taken) -> None:
    whole = field.kind == "integer"
    number = ui.number(field.name, value=value, step=1 if whole else None, on_change=taken)
    number.props("dense" + (" clearable" if field.empty else ""))
    if field.low is not None and field.high is not None:
        number.tooltip(f"from {field.low:g} to {field.high:g}")


def _choice(field: FormField, value: Any, taken: Taken) -> None:
    ui.select(list(field.choices), label=field.name, value=value, on_change=taken, clearable=field.empty).props("dense")


def _switch(field: FormField, value: Any, taken: Taken) -> None:
    ui.switch(field.name, value=bool(value), on_change=taken)


def _words(field: FormField, value: Any, taken: Taken) -> None:
    ui.input(field.name, value="" if value is None else str(value), on_change=taken).props("dense debounce=400")


def _line(field: FormField, value: Any, taken: Taken) -> None:
    shown = (
        "" if value in (None, field.default) else yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    )
    shown = shown.removesuffix("...").strip()
    line = ui.input(field.name, value=shown, on_change=taken).props("dense debounce=600").classes("w-full")
    if field.default is not None:
        line.props(f'stack-label placeholder="{_hint(field.default)}"')


def _hint(default: Any) -> str:
    known = (
        {key: value for key, value in default.items() if value is not None} if isinstance(default, dict) else default
    )
    return (
        yaml.safe_dump(known, default_flow_style=True, width=10**6)
        .strip()
        .removesuffix("...")
        .strip()
        .replace('"', "'")
    )


_INPUTS: dict[str, Callable[[FormField, Any, Taken], None]] = {
    "text": _words,
    "integer": _number,
    "number": _number,
    "switch": _switch,
    "choice": _choice,
    "yaml": _line,
}
