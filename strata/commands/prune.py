"""`strata prune`: ended runs that a cloud keeps no longer."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.options import Format, FormatOption, UrlOption, connect


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Remove the ended runs beyond CLOUD_KEEP_DAYS and CLOUD_KEEP_BYTES now, as the cloud does every hour."""
    from strata.output import print_json, stdout

    with connect(url) as client:
        removals = (client.removals() if dry_run else client.remove_old()).runs
    if format is Format.json:
        print_json([each.model_dump(mode="json") for each in removals])
        return
    for each in removals:
        done = "would be removed" if dry_run else "was removed"
        stdout().print(f"{each.run} ({each.name}) {done}: {each.reason}", highlight=False, markup=False, soft_wrap=True)
    if not removals:
        stdout().print("nothing to remove")
