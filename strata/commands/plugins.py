"""`strata plugins`: the plug-in packages of this environment, and what each brings."""

from __future__ import annotations

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
