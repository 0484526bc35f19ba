"""`strata profiles`: profiles from measurements."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.options import Format, FormatOption

if TYPE_CHECKING:
    from strata.measured.fit import Fit

CORRELATED = 0.3
"""Columns whose logarithms are correlated by less than this are not named."""

profiles = typer.Typer(name="profiles", help="Profiles of devices from measurements.", no_args_is_help=True)


@profiles.command()
def fit(
    file: Annotated[Path, typer.Argument(metavar="MEASURED.CSV", help="A file of devices: a row for each.")],
    components: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="Parts of each mixture; default: as many as the criterion chooses, up to 5."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="A column to fit, once for each; default: all that a profile can have.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the starts of the search.")] = 0,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the fits against the measurements (.png, .svg or .pdf).")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Fit mixtures of log-normal distributions to measured devices, by maximum likelihood.

    Prints the part of a spec that gives devices these distributions. Each column is fitted by itself, and drawn by
    itself: correlations between columns are lost, and named. A file of devices keeps them.
    """
    from shared.results.comparison_figure import file_format
    from shared.results.matplotlib_figures import draw
    from strata.measured import fit as fitting
    from strata.measured.fit_picture import picture_of
    from strata.measured.read import devices_of
    from strata.output import print_json, stderr, stdout

    if picture is not None:
        file_format(picture, "--picture")  # rejects a wrong suffix before anything is read
    devices = devices_of(file)
    chosen = columns or fitting.default_columns(devices)
    found = fitting.fits(devices, chosen, components, seed)
    correlated = fitting.correlations(devices, chosen)
    left_out = [column for column in devices.columns if column not in chosen]
    if format is Format.json:
        print_json({"fits": [_json(each) for each in found], "correlations": _pairs(correlated), "left_out": left_out})
    else:
        for line in (*map(_line, found), *_remarks(correlated, left_out)):
            stdout().print(f"# {line}", markup=False, highlight=False, soft_wrap=True)
        stdout().print(fitting.yaml_of(found), markup=False, highlight=False, soft_wrap=True)
    if picture is not None:
        draw(picture, picture_of(found, file.name))
        stderr().print(f"picture: {picture}", markup=False, highlight=False, soft_wrap=True)


class Source(StrEnum):
    """Whose measurements are converted."""

    fedscale = "fedscale"
    mobiperf = "mobiperf"


@profiles.command()
def convert(
    source: Annotated[Source, typer.Argument(help="Whose measurements they are.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="fedscale: client_device_capacity, and then client_behave_trace if wanted; mobiperf: files of JSON.",
        ),
    ],
    to: Annotated[Path, typer.Option(help="The file of devices to write.")],
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="Most rows; of more devices, some are drawn.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the draw.")] = 0,
    forward_flops: Annotated[
        float | None,
        typer.Option(min=1.0, help="fedscale: operations of inference on a sample of the measured model, such as 6e8."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="mobiperf: only measurements on this type of network, such as WIFI.")
    ] = None,
) -> None:
    """Make a file of devices, as `devices: {file: ...}` takes it, of the measurements of another project.

    What was assumed and what was left out is printed, and stands in the first lines of the file. FedScale's pickled
    files are read as data: nothing in them is imported or called.
    """
    from shared.core.errors import BadInput
    from shared.core.files import write_file
    from strata.measured import conversion, fedscale, mobiperf
    from strata.output import stderr

    if source is Source.fedscale:
        if len(files) > 2 or network is not None:
            raise BadInput("fedscale takes client_device_capacity, then client_behave_trace, and no --network")
        found = fedscale.converted(files[0], files[1] if len(files) > 1 else None, rows, seed, forward_flops)
    else:
        if forward_flops is not None:
            raise BadInput("--forward-flops belongs to fedscale: MobiPerf measures no compute")
        found = mobiperf.converted(files, rows, seed, network)
    named = ", ".join(f"{path.name} (sha256 {conversion.digest_of(path)})" for path in files)
    write_file(to, found.text(f"strata profiles convert {source.value}: {named}").encode())
    for line in (*found.remarks, f"{to} has {len(found.rows):,} rows of {', '.join(found.columns)}"):
        stderr().print(line, markup=False, highlight=False, soft_wrap=True)


def _line(fit: Fit) -> str:
    parts, unsure = len(fit.found.mixture), "" if fit.converged else "; the search did NOT converge"
    numbers = f"log-likelihood {fit.log_likelihood:.2f}, BIC {fit.bic:.2f}"
    tried = ", ".join(f"{number}: {bic:.2f}" for number, bic in fit.tried.items() if number != parts)
    others = f" (with other numbers of parts: {tried})" if tried else ""
    many = f"{parts} part{'s' * (parts > 1)} of {len(fit.values):,} values"
    gap = f"distribution functions differ by at most {100 * fit.gap:.1f} %"
    return f"{fit.column}: {many}; {numbers}{others}; {gap}{unsure}"


def _remarks(correlated: dict[tuple[str, str], float], left_out: list[str]) -> list[str]:
    lost = [f"{one} with {other} {r:+.2f}" for (one, other), r in correlated.items() if abs(r) >= CORRELATED]
    lines = (
        [f"lost, since each column is drawn by itself: correlations of logarithms, {', '.join(lost)}"] if lost else []
    )
    return lines + ([f"not fitted: {', '.join(left_out)}"] if left_out else [])


def _json(fit: Fit) -> dict[str, Any]:
    return {
        "column": fit.column,
        "distribution": fit.found.model_dump(exclude_none=True),
        "n": len(fit.values),
        "log_likelihood": fit.log_likelihood,
        "bic": fit.bic,
        "bic_by_parts": {str(number): bic for number, bic in fit.tried.items()},
        "gap": fit.gap,
        "converged": fit.converged,
    }


def _pairs(correlated: dict[tuple[str, str], float]) -> list[dict[str, Any]]:
    return [{"columns": list(pair), "correlation": r} for pair, r in correlated.items()]
