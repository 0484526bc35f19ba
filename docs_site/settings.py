"""The reference of all settings as Markdown: the environment variables that each process reads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticUndefined

from cloud_server.settings import CloudSettings
from device_agent.settings import AgentSettings
from docs_site.markdown import described, table, type_of
from edge_server.settings import EdgeSettings
from shared.service.settings import CommonSettings, Environment
from strata.fleet.settings import FleetSettings

SETTINGS = "settings.md"
TIERS: dict[str, type[Environment]] = {
    "All processes": CommonSettings,
    "Cloud": CloudSettings,
    "Edge": EdgeSettings,
    "Agent": AgentSettings,
    "Fleet": FleetSettings,
}
COMMAND_LINE = {
    "STRATA_URL": "address of the cloud that commands talk to; default: that of a running `strata up`",
    "STRATA_HOME": "folder for the note of a running `strata up` and for the state of local runs; default: `.strata`",
    "STRATA_CA_FILE": "certificate of the authority with which a cloud in secure mode is recognised",
    "STRATA_PLUGINS": "packages of [plug-ins](how-to/plugins.md), separated by commas",
    "STRATA_REDIS_SERVER": "path of a `redis-server` for local processes",
    "STRATA_LOG_FORMAT": "`json` or `text`; default: text on a terminal ([logs](logs.md))",
    "STRATA_LOG_LEVEL": "`DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`; default `INFO`",
    "STRATA_IMAGE": "image of the containers in Compose and Swarm",
    "STRATA_PORT": "port of the cloud that Compose and Swarm publish",
}
"""Variables that no settings class has as a field, and what they say."""
_INTRODUCTION = """This page lists the environment variables that StrataFL reads; it is generated from the code. A
setting concerns one process, a [spec](specs.md) one run. Lists are separated by commas. A misspelt variable is refused
with the nearest name; one that begins with `STRATA_` is only logged."""


def settings_page() -> str:
    """Returns the page with a table for each kind of process."""
    parts = ["# Settings", _INTRODUCTION]
    for title, settings in TIERS.items():
        parts += [f"## {title}", table(("variable", "type", "default", "meaning"), rows(settings))]
    parts += ["## Command line, launcher and Compose", table(("variable", "meaning"), _variables())]
    return "\n\n".join(parts) + "\n"


def rows(settings: type[Environment]) -> Iterator[tuple[str, ...]]:
    """Returns a row for each variable of a settings class, whose docstrings say what each means."""
    said: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        said |= described(inspect.getdoc(each) or "")[1] if issubclass(each, Environment) else {}
    schema = settings.model_json_schema()["properties"]
    for name, field in settings.model_fields.items():
        if name in ("common", "fd"):  # a tier's own; the launcher's
            continue
        variable = f"`{settings.model_config['env_prefix']}{name.upper()}`"
        yield variable, type_of(schema[name]), _default(field), said[name]


def _default(field: Any) -> str:
    """Returns a default as the variable would have it; an empty text if it is none, or depends on the machine."""
    default = field.default
    if default is None or default is PydanticUndefined or default == []:
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{','.join(default) if isinstance(default, tuple) else default}`"


def _variables() -> Iterator[tuple[str, str]]:
    for name, meaning in COMMAND_LINE.items():
        yield f"`{name}`", meaning
