"""`strata new`: begins a project with plug-ins of one's own."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Annotated

import typer

_TEMPLATE = Path(__file__).parents[1] / "project_template"
_PLACE = "PACKAGE"
"""The word in paths and texts of the template that the name of the package replaces."""
_NAME = r"[a-z][a-z0-9_]{0,39}"


def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make, whose name becomes that of the package.")],
) -> None:
    """Make a project: a spec, a package with an algorithm, a model and a data set, and its tests.

    Its README.md says how to check, run and test it. A folder that exists is refused.
    """
    from shared.core.errors import BadInput
    from strata.output import stdout

    package = _package_of(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise BadInput(f"{folder} exists; name a new folder") from None
    for source in sorted(path for path in _TEMPLATE.rglob("*") if path.is_file()):
        path = folder / str(source.relative_to(_TEMPLATE)).replace(_PLACE, package).removesuffix(".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.read_text(encoding="utf-8").replace(_PLACE, package), encoding="utf-8")
    go = f"cd {folder}\nexport STRATA_PLUGINS={package}\nstrata check {package}\nstrata run spec.yaml"
    stdout().print(f"{folder} has a spec, the package {package} and its tests. README.md says more; to begin:\n\n{go}")


def _package_of(folder: Path) -> str:
    """The name of the package of a project.

    Raises:
        BadInput: the folder's name gives none, or a module has that name already.
    """
    from shared.core.errors import BadInput

    package = folder.absolute().name.lower().replace("-", "_")
    if not re.fullmatch(_NAME, package):
        form = "write up to 40 letters a to z, digits, _ and -, a letter first"
        raise BadInput(f"{folder.name!r} gives a package no name: {form}")
    found = importlib.util.find_spec(package)
    if found is not None and found.origin is not None:  # a folder without __init__.py has no origin
        raise BadInput(f"{package} is the name of a module already ({found.origin}): choose another")
    return package
