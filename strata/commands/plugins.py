"""`strata plugins` lists the plug-in packages of this environment, `strata check` tries what one brings."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.options import Format, FormatOption


def plugins(format: FormatOption = Format.table) -> None:
    """List the packages that STRATA_PLUGINS names, with their digests and what each brings."""
    from strata.output import Column, FittedTable, print_json, stdout
    from strata.plugin_listing import brought

    rows = brought()
    if format is Format.json:
        print_json([row._asdict() for row in rows])
        return
    if not rows:
        stdout().print("STRATA_PLUGINS names no package")
        return
    columns = [
        Column("package", [row.package for row in rows], justify="left"),
        Column("digest", [row.digest[:12] for row in rows], spare=1, justify="left"),
        Column("kind", [row.kind for row in rows], justify="left"),
        Column("name", [row.name for row in rows], justify="left"),
        Column("parameters", [row.parameters for row in rows], spare=2, justify="left", fold=True),
        Column("description", [row.description for row in rows], spare=3, justify="left", fold=True),
    ]
    stdout().print(FittedTable(columns))


def check(
    package: Annotated[str, typer.Argument(help="A package of plug-ins, as STRATA_PLUGINS names it.")],
    only: Annotated[str | None, typer.Option(help="Check only the value of this name.")] = None,
) -> None:
    """Check what a package of plug-ins brings against the contract of each kind.

    Exit status 1 if a check fails, or if the package brings nothing.
    """
    from rich.text import Text

    from strata.checks.run import checked
    from strata.output import stdout

    out, n, n_failed = stdout(), 0, 0
    for result in checked(package, only):
        n, failed = n + 1, result.cause is not None
        n_failed += failed
        mark = Text("FAIL", "bold red") if failed else Text("ok  ", "green")
        out.print(mark, Text(f"{result.kind} {result.name}: {result.check}"))
        if failed:
            out.print(Text(f"     {result.cause}"), soft_wrap=True)
    out.print(f"{n} checks, {n_failed} failed" if n else f"{package} brings nothing")
    raise typer.Exit(1 if n_failed or not n else 0)
