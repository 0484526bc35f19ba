"""The catalogue of the specs in experiments/ as Markdown, and the measurement of how long they take.

`make experiment-times EXPERIMENTS="quickstart digits_moon"` runs specs and keeps their CPU seconds in
docs_site/times.json; `ROUNDS=2` trains so many rounds of each only, from which the page estimates all.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docs_site.markdown import line, table
from shared.spec.run import RunSpec
from strata.spec_files import read_spec

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = "experiments.md"
TIMES = Path(__file__).parent / "times.json"
GROUPS = {
    "bofl": "BOFL", "dtpfl": "DTPFL and digital twins", "es_afl": "ES-AFL", "fedser": "FedSER", "lafl_cpn": "LAFL-CPN",
    "digits": "One method each, on handwritten digits", "mnist": "FedAvg and FedBN on MNIST's family",
    "": "First steps, other data, stragglers",
}  # fmt: skip
"""Titles of the page by the first words of the names, in the order in which a name is looked up."""
_INTRODUCTION = """This page lists the specs in `experiments/` with what each shows, how to run it, and what it costs.
It is generated from their first comments. CPU time is that of all processes together, on {cpus}: divide it by your
cores. `make experiment-times EXPERIMENTS=NAME` measures a spec on your machine (`ROUNDS=2`: some rounds, from which
the rest is estimated). Where there is no figure, nobody has measured it."""


def catalogue_page() -> str:
    """Returns the page."""
    times: dict[str, Any] = json.loads(TIMES.read_text(encoding="utf-8"))
    groups: dict[str, list[tuple[str, ...]]] = {prefix: [] for prefix in ("", *GROUPS)}
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        prefix = next(prefix for prefix in GROUPS if path.stem.startswith(prefix))
        groups[prefix].append(_row(path, times["cpu_s"].get(path.stem)))
    parts = ["# Experiments", _INTRODUCTION.format(cpus=times["machine"])]
    for prefix, rows in groups.items():
        parts += [f"## {GROUPS[prefix]}", table(("spec", "shows", "size", "CPU time", "run it"), rows)]
    return "\n\n".join(parts) + "\n"


def _row(path: Path, time: dict[str, Any] | None) -> tuple[str, ...]:
    about, commands = comment(path)
    spec = read_spec(path, [])
    data = f"`{spec.data.name or spec.data.file}`, `{spec.model.name}`"
    size = f"{data}, {spec.num_devices} devices, {spec.num_rounds} rounds"
    return f"`{path.name}`", about, size, _cost(spec, time), "<br>".join(f"`{each}`" for each in commands)


def comment(path: Path) -> tuple[str, list[str]]:
    """Returns the first comment of a spec: its text, and the commands that it ends with."""
    about: list[str] = []
    commands: list[str] = []
    for row in path.read_text(encoding="utf-8").splitlines():
        if not row.startswith("#"):
            break
        (commands if row.startswith("#   ") else about).append(row.removeprefix("#").strip())
    return line(" ".join(about)), commands


def _cost(spec: RunSpec, time: dict[str, Any] | None) -> str:
    if time is None:
        return "not measured"
    seconds = time["seconds"] * spec.num_rounds / time["rounds"]
    limits = ((120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h"))
    words = next(f"{seconds / unit:.0f} {name}" for below, unit, name in limits if seconds < below)
    return words if time["rounds"] == spec.num_rounds else f"about {words}, from {time['rounds']} rounds"


def measure(names: Sequence[str], rounds: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs specs, and returns the CPU seconds of each, with the number of rounds."""
    for name in names:
        path = ROOT / "experiments" / f"{name}.yaml"
        wanted = min(rounds or sys.maxsize, read_spec(path, []).num_rounds)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "strata.main", "run", str(path), f"num_rounds={wanted}", "--local"]
            before = _children_s()
            subprocess.run([*command, "--runs-dir", folder], check=True)  # noqa: S603 - our own command
            yield name, {"seconds": round(_children_s() - before, 1), "rounds": wanted}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(names: Sequence[str], rounds: int | None) -> None:
    """Measure specs, and keep what is found after each."""
    for name, found in measure(names, rounds):
        times = json.loads(TIMES.read_text(encoding="utf-8"))
        times["cpu_s"] = dict(sorted({**times["cpu_s"], name: found}.items()))
        TIMES.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]) or None)
