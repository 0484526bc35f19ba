"""`strata plan`: what a run would be, before anything runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strata.options import Format, FormatOption, SpecArgument, spec_and_fields


def plan(
    spec: SpecArgument = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Fields of the spec to change, such as partition.alpha=0.1"),
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what a run would be: its data and model, how long tasks and rounds take in simulated time, their bytes.

    Nothing is started and nothing is trained. Fields of devices, links and deadlines that change nothing are named.
    Devices have the profiles of the spec; a run takes those of its agents where the spec names none.
    """
    from shared.core.user_code import user_code
    from shared.federation.expected_times import ExpectedTimes
    from shared.federation.plan import plan_of
    from strata.output import print_json, stdout
    from strata.runs.spec_check import experiment_of
    from strata.spec_files import read_spec

    source, fields = spec_and_fields(spec, overrides or [], "an override has the form key=value")
    with user_code("the plan"):
        experiment = experiment_of(read_spec(source, fields, check_names=False))
        times = ExpectedTimes(experiment, experiment.spec)
        lines = [*plan_of(experiment), *times.lines()]
    if format is Format.json:
        print_json(_json(times, lines))
    else:
        for line in lines:
            stdout().print(line, markup=False, highlight=False, soft_wrap=True)


def _json(times: Any, lines: list[str]) -> dict[str, Any]:
    """The plan as one object; seconds are simulated."""
    classes = [vars(each) for each in times.classes]
    round_s = times.last[0] if times.seats else None
    return {"lines": lines, "devices": classes, "round_s": round_s, "without_effect": [*times.without_effect()]}
