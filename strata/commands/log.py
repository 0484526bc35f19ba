"""`strata log`: the log lines of a run, or of one of its rounds, from all tiers."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.core.errors import BadInput, NotFound
from shared.runtime.streams import no_reader
from strata.launcher import home
from strata.options import RUNS_DIR, RunsDirOption

if TYPE_CHECKING:
    from strata.log_reader import Line, Wanted


class LineFormat(StrEnum):
    """Output formats of a log line."""

    text = "text"
    json = "json"


class TierName(StrEnum):
    """The tiers that log."""

    cloud = "cloud"
    edge = "edge"
    agent = "agent"


def log(
    run: Annotated[str, typer.Argument(help="A run id, `latest`, or `all` for every line.")] = "latest",
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new lines until the run has ended.")] = False,
    round_no: Annotated[int | None, typer.Option("--round", min=1, help="Only lines of this round.")] = None,
    tier: Annotated[TierName | None, typer.Option(help="Only lines of this tier.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PATH | -", help="A log file or folder, or - for stdin; default: the logs of `strata up`."
        ),
    ] = None,
    format: Annotated[
        LineFormat, typer.Option("--format", help="Print text for people, or one JSON object per line.")
    ] = LineFormat.text,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Show the log of a run: the lines of the cloud, edges and agents, merged by time.

    For containers: `docker compose logs --no-log-prefix cloud edge-1 edge-2 device | strata log --from -`.
    """
    from strata.log_reader import Wanted
    from strata.output import print_error

    wanted, shown = Wanted(run, round_no, tier.value if tier else None), False
    with contextlib.suppress(KeyboardInterrupt):
        for line in _lines(wanted, source, follow, runs_dir):
            _print(line, format)
            shown = True
            if no_reader():  # as in `strata log | head`
                break
    if not shown:
        print_error(_nothing(wanted))
        raise typer.Exit(1)


def _lines(wanted: Wanted, source: str | None, follow: bool, runs_dir: Path) -> Iterator[Line]:
    from strata import log_reader

    if source == "-":
        piped = log_reader.of_stream(sys.stdin)
        yield from filter(wanted.takes, piped) if follow else log_reader.history(piped, wanted)
        return
    files = log_reader.Files(_path(wanted, source, runs_dir))
    yield from log_reader.follow(files, wanted) if follow else log_reader.history(files.new(), wanted)


def _path(wanted: Wanted, source: str | None, runs_dir: Path) -> Path:
    """The path of the logs: the given one, those that `strata run` kept of a failed run, or those of `strata up`.

    Raises:
        NotFound: no logs were found; the message says where to look.
        BadInput: the given path does not exist.
    """
    if source is not None:
        if not Path(source).exists():
            raise BadInput(f"no such file or folder: {source!r}", field="from")
        return Path(source)
    kept = runs_dir / wanted.run / "logs"
    if Path(wanted.run).name == wanted.run and kept.is_dir():
        return kept
    running = home.running()
    if running is not None and running.logs:
        return Path(running.logs)
    where = "`docker compose logs --no-log-prefix cloud edge-1 edge-2 device | strata log --from -`"
    raise NotFound(f"no `strata up` runs here; for containers use {where}; for other processes --from FOLDER")


def _nothing(wanted: Wanted) -> NotFound:
    foreign = f"; {wanted.n_foreign} lines are not JSON: was STRATA_LOG_FORMAT=text set?" if wanted.n_foreign else ""
    return NotFound(f"no matching log lines{foreign}")


def _print(line: Line, format: LineFormat) -> None:
    from shared.runtime.logs import unfolded

    text = json.dumps(line, ensure_ascii=True) if format is LineFormat.json else unfolded(line)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
