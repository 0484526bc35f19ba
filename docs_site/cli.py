"""The reference of the command line as Markdown, from the Typer app: every verb with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

import typer

from docs_site.markdown import line, table
from strata.main import app

CLI = "cli.md"
_INTRODUCTION = """This page lists every command of `strata` with its arguments and options; it is
generated from the code. `strata COMMAND --help` prints the same, `strata --version` the version."""


def commands() -> dict[str, Any]:
    """Returns every command by the words that call it, such as `certs init`."""
    return dict(_commands(typer.main.get_command(app), ""))


def _commands(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def cli_page() -> str:
    """Returns the page with a section for each command."""
    sections = (_section(name, command) for name, command in sorted(commands().items()))
    return "\n\n".join(["# Command line", _INTRODUCTION, *sections]) + "\n"


def _section(name: str, command: Any) -> str:
    parameters = [each for each in command.params if not each.hidden]
    usage = [f"strata {name}", *(_usage(each) for each in parameters if not _is_option(each))]
    if any(map(_is_option, parameters)):
        usage.append("[OPTIONS]")
    parts = [f"## strata {name}", f"    {' '.join(usage)}", command.help or ""]
    if parameters:
        parts.append(table(("", "value", "default", "meaning"), map(_row, parameters)))
    return "\n\n".join(parts)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _usage(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    more = "..." if parameter.nargs == -1 and not name.endswith("...") else ""
    return f"{name}{more}" if parameter.required else f"[{name}{more}]"


def _row(parameter: Any) -> tuple[str, ...]:
    name = ", ".join(f"`{option}`" for option in parameter.opts) if _is_option(parameter) else f"`{_usage(parameter)}`"
    return name, _value(parameter), _default(parameter), line(parameter.help or "")


def _value(parameter: Any) -> str:
    """Returns the kind of a parameter's value with its bounds; a switch has none."""
    kind = parameter.type_descriptor.annotation
    several = getattr(kind, "__origin__", None) is list
    kind = get_args(kind)[0] if several else kind
    if kind is bool:
        return ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    words = {"str": "text", "int": "number", "float": "number"}.get(kind.__name__, kind.__name__.lower())
    words += f", from {parameter.min:g}" if parameter.min is not None else ""
    words += f" to {parameter.max:g}" if parameter.max is not None else ""
    return f"{words}; may be repeated" if several and _is_option(parameter) else words


def _default(parameter: Any) -> str:
    if parameter.required:
        return "**required**"
    default = parameter.default
    if default is None or default is False or callable(default):
        return ""
    return f"`{default.value if isinstance(default, Enum) else default}`"
