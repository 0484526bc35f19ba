"""The catalogue of the specs in experiments/ as Markdown, and the measurement of how long they take.

`make experiment-times EXPERIMENTS="quickstart digits_moon"` runs specs and keeps their CPU seconds in
experiments/times.json; `ROUNDS=2` trains so many rounds of each only, from which the page estimates all.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from docs_site.markdown import line
from shared.spec import catalogue

CATALOGUE = "experiments.md"
GROUPS = {
    "bofl": "BOFL", "dtpfl": "DTPFL and digital twins", "es_afl": "ES-AFL", "fedser": "FedSER", "lafl_cpn": "LAFL-CPN",
    "digits": "One method each, on handwritten digits", "mnist": "FedAvg and FedBN on MNIST's family",
    "": "First steps, other data, stragglers",
}  # fmt: skip
"""Titles of the page by the first words of the names, in the order in which a name is looked up."""
_INTRODUCTION = """This page lists the experiments that come with StrataFL: what each shows, how to run it, and what
it costs. It is generated from the first comments of their specs, the files in `experiments/`. `strata experiments`
prints the list, `strata experiments NAME` one of the specs. CPU time is that of all processes together, on {cpus}:
divide it by your cores. `make experiment-times EXPERIMENTS=NAME` measures a spec on your machine (`ROUNDS=2`:
some rounds, from which the rest is estimated). Where there is no figure, nobody has measured it."""


def catalogue_page() -> str:
    """Returns the page."""
    times = catalogue.measured()
    groups: dict[str, list[str]] = {prefix: [] for prefix in ("", *GROUPS)}
    for entry in catalogue.entries():
        prefix = next(prefix for prefix in GROUPS if entry.name.startswith(prefix))
        groups[prefix].append(_section(entry, times))
    parts = ["# Experiments", _INTRODUCTION.format(cpus=times.machine)]
    for prefix, sections in groups.items():
        parts += [f"## {GROUPS[prefix]}", *sections]
    return "\n\n".join(parts) + "\n"


def _section(entry: catalogue.Entry, times: catalogue.Times) -> str:
    spec = entry.spec
    said = re.sub(r"docs/([\w/-]+\.md)", r"[\g<0>](\1)", line(entry.about).replace("<", "&lt;"))
    data = f"`{spec.data.name or spec.data.file}`, `{spec.model.name}`"
    size = f"{data}, {spec.num_devices} devices, {spec.num_rounds} rounds; CPU time: {entry.cost(times)}."
    return "\n\n".join([f"### {entry.name}", said, size, "\n".join(f"    {each}" for each in entry.commands)])


def measure(names: Sequence[str], rounds: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs specs, and returns the CPU seconds and rounds of each; if not all rounds, also the seconds of a start."""
    rounds_of = {entry.name: entry.spec.num_rounds for entry in catalogue.entries()}
    start = {"start": _run_s("quickstart", 1)} if rounds else {}
    for name in names:
        whole = rounds_of[name]
        some = min(rounds or whole, whole)
        yield name, {"seconds": _run_s(name, some), "rounds": some, **(start if some < whole else {})}


def _run_s(name: str, rounds: int) -> float:
    """Returns the CPU seconds of all processes of a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "strata.main", "run", name, f"num_rounds={rounds}", "--local"]
        before = _children_s()
        subprocess.run([*command, "--runs-dir", folder], check=True)  # noqa: S603 - our own command
        return round(_children_s() - before, 1)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(names: Sequence[str], rounds: int | None) -> None:
    """Measure specs, and keep what is found after each."""
    for name, found in measure(names, rounds):
        times = json.loads(catalogue.TIMES.read_text(encoding="utf-8"))
        times["cpu_s"] = dict(sorted({**times["cpu_s"], name: found}.items()))
        catalogue.TIMES.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]) or None)
