"""What plug-in packages bring, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shared.core.formatting import parameters_text
from shared.core.plugins import Kind, digests
from shared.federation.plugin_checks import KINDS


class Brought(NamedTuple):
    """One value of a package; a package without values has one row of its own."""

    package: str
    digest: str
    kind: str
    name: str
    parameters: str
    description: str


def brought() -> list[Brought]:
    """The values of all packages, by package, kind and name.

    Raises:
        BadInput: a package is missing, or a name is taken twice. An error inside a package is raised unchanged.
    """
    rows, known = list(_rows()), digests()
    empty = known.keys() - {row.package for row in rows}
    return sorted(rows + [Brought(package, known[package], "-", "-", "-", "") for package in empty])


def _rows() -> Iterator[Brought]:
    known = digests()
    for kind in KINDS:
        for name, found in kind.plugged().items():
            value: Any = found.value
            description: str = getattr(value, "description", "") or getattr(value, "paper", "")
            yield Brought(
                found.package,
                known[found.package],
                kind.word,
                name,
                parameters_text(value.params.model_json_schema() if value.params else {}),
                description,
            )


class Known(NamedTuple):
    """One value of a kind; `package` is None if it is built in."""

    name: str
    parameters: str
    description: str
    package: str | None


def known(kind: Kind[Any]) -> list[Known]:
    """The values of a kind by name."""
    found = kind.all().items()
    return [
        Known(
            name,
            parameters_text(value.params.model_json_schema() if value.params else {}),
            value.description,
            kind.package_of(name),
        )
        for name, value in found
    ]
