"""`strata plan`: what a run would be, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strata.options import Format, FormatOption, SpecArgument, UrlOption, connect, spec_and_fields

if TYPE_CHECKING:
    from shared.run_records.plans import RunPlan
    from shared.spec.run import RunSpec


def plan(
    spec: SpecArgument = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Fields of the spec to change, such as partition.alpha=0.1"),
    ] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what a run would be: its data and model, how long tasks and rounds take in simulated time, their bytes.

    Nothing is started and nothing is trained. Fields of devices, links and deadlines that change nothing are named.
    Devices have the profiles of the spec. With --url the cloud there says it, which knows the profiles of its agents: a
    run has those where its spec names none.
    """
    from strata.output import print_json, stdout
    from strata.spec_files import read_spec

    source, fields = spec_and_fields(spec, overrides or [], "an override has the form key=value")
    asked = read_spec(source, fields, check_names=False)
    if url is None:
        found = _here(asked)
    else:
        with connect(url) as client:
            found = client.plan(asked.model_dump(mode="json", exclude_none=True))
    if format is Format.json:
        print_json(found.model_dump(mode="json"))
    else:
        for line in found.lines:
            stdout().print(line, markup=False, highlight=False, soft_wrap=True)


def _here(spec: RunSpec) -> RunPlan:
    """The plan of a spec on this machine's data."""
    from shared.core.user_code import user_code
    from shared.federation.expected_times import ExpectedTimes
    from strata.runs.spec_check import experiment_of

    with user_code("the plan"):
        experiment = experiment_of(spec)
        return ExpectedTimes(experiment, experiment.spec).plan()
