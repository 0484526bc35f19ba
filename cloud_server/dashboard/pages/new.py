"""The page that starts a run, from a form or from the text of a spec; each follows changes of the other."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import yaml
from nicegui import events, ui
from nicegui.elements.mixins.validation_element import ValidationElement

from cloud_server.dashboard.forms import FormField, fields_of, flow_yaml, help_line, parse_value, with_value
from cloud_server.dashboard.layout import Dashboard, Page, card, open_page, with_field
from cloud_server.dashboard.plan_preview import PlanPreview
from cloud_server.dashboard.spec_checks import known_names, warnings_of
from shared.core import parsing
from shared.core.errors import BadInput, StrataError
from shared.federation.registry import all_algorithms
from shared.federation.spec_parser import parse_run_spec
from shared.spec import catalogue
from shared.spec.experiment import ExperimentSpec
from shared.spec.run import RunSpec

_EXPERIMENT_FIELDS = (
    "name",
    "seed",
    "num_rounds",
    "edge_rounds",
    "num_edges",
    "num_devices",
    "local_epochs",
    "local_steps",
    "batch_size",
    "lr",
)

_YAML_FIELDS = ("data", "model", "partition", "devices")
_UPLOAD_OVERHEAD_BYTES = 1024
"""Upper bound of what an upload request adds to the file."""


def register(dashboard: Dashboard) -> None:
    """Add the page."""

    @ui.page("/new")
    async def new_run_page() -> None:
        async with open_page(dashboard, "New run", "/new") as page:
            View(dashboard, page).build()


class View:
    """The page in one browser. The text of the spec is submitted; the form edits that text."""

    def __init__(self, dashboard: Dashboard, page: Page) -> None:
        self.dashboard, self.page = dashboard, page
        self.document: dict[str, Any] = {"name": "experiment"}
        schema = RunSpec.model_json_schema()
        names = {name: tuple(known) for name, known in known_names().items()}
        fields = fields_of(schema, ExperimentSpec.__doc__)
        self.fields = {field.name: replace(field, choices=names.get(field.name, field.choices)) for field in fields}
        self.inputs: dict[str, Input] = {}
        self.spec: RunSpec | None = None  # that of the text, if it is valid
        self.invalid: dict[str, str] = {}  # what is wrong with inputs of the form, by field
        self.written = _text(self.document)  # the text that the form shows
        self.shown_warnings: list[str] = []
        self.key = uuid.uuid4().hex  # of all clicks on Start: two quick ones create one run

    def build(self) -> None:
        """Create the page's elements."""
        max_bytes = max(self.dashboard.cloud.settings.max_spec_bytes - _UPLOAD_OVERHEAD_BYTES, 1)
        ui.label("New run").classes("text-h6").props("role=heading aria-level=1")
        self._build_examples()
        with ui.element("div").classes("form w-full"):
            with ui.column().classes("items-stretch"):
                self.form = ui.column().classes("w-full items-stretch")
            with card("Spec") as side:
                side.classes("side")
                upload = ui.upload(
                    auto_upload=True,
                    max_file_size=max_bytes,
                    on_upload=self._uploaded,
                    on_rejected=lambda: ui.notify(
                        f"expected a YAML or JSON file of at most {max_bytes:,} bytes", type="negative"
                    ),
                )
                upload.props('accept=".yaml,.yml,.json"').classes("hidden")  # its own button has no name
                pick = ui.button("Upload a spec file (YAML or JSON)", icon="upload_file").props("flat no-caps")
                pick.on("click", js_handler=f"() => runMethod({upload.id}, 'pickFiles', [])")
                self.text = (
                    ui.textarea(value=_text(self.document))
                    .classes("w-full")
                    .props('outlined input-style="font-family: monospace; min-height: 20rem" aria-label="Spec as YAML"')
                )
                self.text.on_value_change(self._check)
                self.text.on("blur", self._text_changed)
                self.error = ui.label().props("role=alert").style("border-left: 5px solid #D55E00; padding-left: 8px")
                self.warnings = ui.column().classes("w-full gap-1").props('role=status aria-label="Warnings"')
                self.plan = PlanPreview(self.dashboard.cloud.runs.planner, self._read, self.page.viewer.caller)
                self.start = ui.button("Start", icon="play_arrow", on_click=self._start).mark("start")
                self.start.props(f"unelevated aria-describedby={self.error.html_id}")
        self._show_form()
        self.page.start_refreshing(self._refresh_warnings, every_s=2.0)

    def _build_examples(self) -> None:
        """Offer the experiments that come with StrataFL."""
        known = {entry.name: entry for entry in catalogue.entries()}

        def load(event: events.ValueChangeEventArguments[Any]) -> None:
            if event.value in known:
                says.set_text(known[event.value].about)
                self.text.set_value(known[event.value].text)
                self._text_changed()

        with ui.row().classes("w-full items-center"):
            choice = _searched_choice("Start from an example", list(known), None, load)
            choice.props("dense clearable")
            says = ui.label().classes("help grow")

    # ---- the form

    def _show_form(self) -> None:
        self.form.clear()
        self.invalid.clear()
        self.inputs.clear()
        with self.form:
            with card("Experiment"), _fields():
                for name in _EXPERIMENT_FIELDS:
                    self._input(self.fields[name], (name,), self.document.get(name))
            with card("Algorithm"):
                self._algorithm_choice()
            with card("Data, model, partition, devices"), _fields():
                for name in _YAML_FIELDS:
                    self._input(self.fields[name], (name,), self.document.get(name))
            with card(""), ui.expansion("All other fields").classes("w-full") as self.others, _fields():
                for name, field in self.fields.items():
                    if name not in (*_EXPERIMENT_FIELDS, *_YAML_FIELDS, "algorithm"):
                        self._input(field, (name,), self.document.get(name))
        self._check()

    def _algorithm(self) -> dict[str, Any]:
        """The algorithm of the document in its long form."""
        raw = self.document.get("algorithm", {})
        return {"name": "fedavg", **raw} if isinstance(raw, Mapping) else {"name": str(raw)}

    def _algorithm_choice(self) -> None:
        def choose(event: events.ValueChangeEventArguments[Any]) -> None:
            self._enter("algorithm", lambda: {**self.document, "algorithm": {"name": event.value}})
            self._show_parameters()
            self._check()

        name, known = self._algorithm()["name"], sorted(all_algorithms())
        with ui.element("div"):
            choice = _searched_choice("algorithm", known, name if name in known else "fedavg", choose)
            self.inputs["algorithm"] = Input(choice, "")
        self.parameters = ui.column().classes("w-full items-stretch")
        self._show_parameters()

    def _show_parameters(self) -> None:
        """Show the paper and the parameters of the document's algorithm."""
        self.parameters.clear()
        for of_form in (self.inputs, self.invalid):
            for name in [name for name in of_form if name.startswith("algorithm.")]:
                del of_form[name]
        algorithm = self._algorithm()
        found, entered = all_algorithms().get(algorithm["name"]), algorithm.get("params")
        if found is None:
            return
        values = entered if isinstance(entered, Mapping) else {}
        with self.parameters:
            ui.label(found.paper).classes("text-caption")
            with _fields():
                for field in fields_of(found.params.model_json_schema()):
                    self._input(field, ("algorithm", "params", field.name), values.get(field.name))

    def _input(self, field: FormField, path: tuple[str, ...], value: Any) -> None:
        """The input of a field; its value is written to the document at `path`."""
        name = ".".join(path)

        def changed(event: events.ValueChangeEventArguments[Any]) -> None:
            self._enter(name, lambda: self._with(field, path, event.value))

        with ui.element("div"):
            line = _INPUTS[field.kind](field, field.default if value is None else value, changed)
            self.inputs[name] = Input(line, help_line(field))

    def _with(self, field: FormField, path: tuple[str, ...], value: Any) -> dict[str, Any]:
        """The document with the value of an input.

        Raises:
            BadInput: it is not a value of the field.
        """
        entered = parse_value(field, value)
        if entered is None and field.kind in ("integer", "number") and not field.nullable:
            raise BadInput("a number is needed")
        document = {**self.document, "algorithm": self._algorithm()} if path[0] == "algorithm" else self.document
        return with_value(document, path, field.default if entered is None else entered, field.default)

    def _enter(self, name: str, changed: Callable[[], dict[str, Any]]) -> None:
        """Take over the document with what an input has, or show why that is wrong."""
        try:
            if self.text.value != self.written and not self._check():
                self.written = ""  # not even this text, if it comes back: the form now has the refused input too
                raise BadInput("not taken over: first mend the text of the spec")
            self.document = changed()
        except BadInput as error:
            self.invalid[name] = f"{name}: {error.detail.removeprefix(name.rpartition('.')[2]).lstrip()}"
            self._check()
        else:
            self.invalid.pop(name, None)
            self._write_text()

    # ---- the text

    def _write_text(self) -> None:
        self.written = _text(self.document)
        self.text.set_value(self.written)
        self._check()

    async def _uploaded(self, event: events.UploadEventArguments) -> None:
        content = await event.file.read()
        self.text.set_value(content.decode("utf-8", "replace"))
        self._text_changed()

    def _text_changed(self) -> None:
        if self.text.value != self.written and self._check():
            self.written = self.text.value or ""
            self._show_form()

    def _read(self) -> dict[str, Any]:
        raw = parsing.load(self.text.value or "", "the spec")
        if not isinstance(raw, dict):
            raise BadInput("the spec must be a mapping of fields to values")
        return raw

    def _check(self) -> bool:
        """Whether the text is a valid spec; shows its error or that of an input of the form, at its field too."""
        try:
            raw = self._read()
            self.spec = parse_run_spec(raw)
        except StrataError as error:
            self.spec = None
            self._show_error(with_field(error))
            self._mark({**self.invalid, **({error.field: error.detail} if error.field else {})})
            return False
        self.document = raw
        self.plan.changed(raw)
        self._show_error(next(iter(self.invalid.values()), ""))
        self._mark(self.invalid)
        self._show_warnings()
        return True

    def _show_error(self, error: str) -> None:
        """Show what is wrong with the spec, because of which it cannot be started; nothing is if it is empty."""
        self.error.set_text(error)
        self.start.props(add="aria-disabled=true" if error else None, remove=None if error else "aria-disabled")

    def _mark(self, errors: Mapping[str, str]) -> None:
        """Mark the inputs whose fields have errors; one within a field, such as `data.name`, is at that field."""
        at: dict[str, str] = {}
        for path, error in errors.items():
            parts = re.split(r"[.\[]", path)
            places = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            at |= dict.fromkeys(islice((place for place in places if place in self.inputs), 1), error)
        for name, line in self.inputs.items():
            line.mark(at.get(name, "").removeprefix(f"{name}: "))
        shown = (*_EXPERIMENT_FIELDS, *_YAML_FIELDS)
        if any(name not in shown and not name.startswith("algorithm.") for name in at):
            self.others.set_value(True)

    def _show_warnings(self) -> None:
        """Show why the run would wait or fail if it were started now."""
        registry, settings = self.dashboard.cloud.registry, self.dashboard.cloud.settings
        found: list[str] = []
        if self.spec is not None:
            counts = {"n_edges": len(registry.open_edges()), "n_devices": registry.n_devices()}
            found = warnings_of(self.spec, **counts, data_dir=settings.common.data_dir)
        if found == self.shown_warnings:
            return
        self.shown_warnings = found
        self.warnings.clear()
        with self.warnings:
            for warning in found:
                with ui.row().classes("items-start no-wrap gap-2"):
                    ui.icon("warning", size="sm").classes("warning").props("aria-hidden=true")
                    ui.label(warning)

    async def _refresh_warnings(self) -> None:
        self._show_warnings()

    async def _start(self) -> None:
        self._text_changed()  # a quick click comes before the text's own blur
        if not self._check() or self.invalid:
            return
        try:
            info = await self.dashboard.requests(self.page).create(self._read(), self.key)
        except StrataError as error:
            self.error.set_text(with_field(error))
            self._mark({error.field: error.detail} if error.field else {})
        else:
            ui.navigate.to(f"/runs/{info.run}")


class Input:
    """An input of the form with its help below it, which gives way to its error."""

    def __init__(self, line: ui.element, help_text: str) -> None:
        self.line, self.help_text, self.error = line, help_text, ""
        self.help = ui.label(self.help_text).classes("help")
        line.props(f"hide-bottom-space aria-describedby={self.help.html_id}")
        if isinstance(line, ValidationElement):
            line.without_auto_validation()

    def mark(self, error: str) -> None:
        """Mark the input as wrong; without an error it is right."""
        if error == self.error:
            return
        self.error = error
        self.help.set_text(error or self.help_text)
        self.help.classes(add="wrong" if error else None, remove=None if error else "wrong")
        marks = "error aria-invalid=true"
        self.line.props(add=marks if error else None, remove=None if error else marks)


def _fields() -> ui.element:
    """The grid of a group of inputs."""
    return ui.element("div").classes("fields w-full")


def _text(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, default_flow_style=False)


OnChange = Callable[[events.ValueChangeEventArguments[Any]], None]


def _line(field: FormField, shown: str, on_change: OnChange) -> ui.input:
    """A line of text, also for numbers: what is typed stays as it is typed, where `ui.number` writes 0 as 0.0."""
    return ui.input(field.name, value=shown, on_change=on_change).props("dense debounce=400")


def _number_input(field: FormField, value: Any, on_change: OnChange) -> ui.element:
    line = _line(field, "" if value is None else str(value).removesuffix(".0"), on_change)
    line.props(f"inputmode={'numeric' if field.kind == 'integer' else 'decimal'}")
    return line.props("clearable") if field.nullable else line


def _choice_input(field: FormField, value: Any, on_change: OnChange) -> ui.element:
    choice = ui.select(list(field.choices), label=field.name, value=value, on_change=on_change)
    return choice.props("dense" + (" clearable" if field.nullable else ""))


def _switch_input(field: FormField, value: Any, on_change: OnChange) -> ui.element:
    return ui.switch(field.name, value=bool(value), on_change=on_change)


def _text_input(field: FormField, value: Any, on_change: OnChange) -> ui.element:
    return _line(field, "" if value is None else str(value), on_change)


def _yaml_input(field: FormField, value: Any, on_change: OnChange) -> ui.element:
    line = _line(field, "" if value in (None, field.default) else flow_yaml(value), on_change).classes("w-full")
    if field.choices:
        line.props("clearable")
        with ui.element("datalist").props(f"id={line.html_id}-datalist"):  # the list that NiceGUI's input names
            for name in field.choices:
                ui.element("option").props(f"value={name}")
    return line


_TAKE_MATCH = """(event) => {
  const select = getElement(%d).$refs.qRef, typed = event.target.value.toLowerCase();
  const labels = select.options.map(option => String(option.label).toLowerCase());
  if (typed === String(select.modelValue?.label).toLowerCase()) return;
  const same = labels.indexOf(typed);
  select.setOptionIndex(same >= 0 || !typed ? same : labels.findIndex(label => label.includes(typed)));
}"""
"""Quasar's own handling of Enter, which follows, takes the option of this index; by itself it only closes the list."""


def _searched_choice(label: str, options: Sequence[str], value: str | None, on_change: OnChange) -> ui.select:
    """A choice whose options are searched by typing; Enter takes the one that is typed, or the first that matches."""
    choice = ui.select(list(options), label=label, value=value, with_input=True, on_change=on_change)
    return choice.on("keydown.enter", js_handler=_TAKE_MATCH % choice.id).classes("w-64")


_INPUTS: dict[str, Callable[[FormField, Any, OnChange], ui.element]] = {
    "text": _text_input,
    "integer": _number_input,
    "number": _number_input,
    "switch": _switch_input,
    "choice": _choice_input,
    "yaml": _yaml_input,
}
