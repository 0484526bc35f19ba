"""The catalogue of the specs in experiments/ as Markdown, and the measurement of how long they take.

`make experiment-times EXPERIMENTS="quickstart digits_moon"` runs specs and keeps their CPU seconds in
docs_site/times.json; `ROUNDS=2` trains so many rounds of each only, from which the page estimates all.
"""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docs_site.markdown import line
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
    groups: dict[str, list[str]] = {prefix: [] for prefix in ("", *GROUPS)}
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        prefix = next(prefix for prefix in GROUPS if path.stem.startswith(prefix))
        groups[prefix].append(_section(path, times["cpu_s"].get(path.stem)))
    parts = ["# Experiments", _INTRODUCTION.format(cpus=times["machine"])]
    for prefix, sections in groups.items():
        parts += [f"## {GROUPS[prefix]}", *sections]
    return "\n\n".join(parts) + "\n"


def _section(path: Path, time: dict[str, Any] | None) -> str:
    about, commands = comment(path)
    spec = read_spec(path, [])
    said = re.sub(r"docs/([\w/-]+\.md)", r"[\g<0>](\1)", about.replace("<", "&lt;"))
    data = f"`{spec.data.name or spec.data.file}`, `{spec.model.name}`"
    size = f"{data}, {spec.num_devices} devices, {spec.num_rounds} rounds; CPU time: {_cost(spec, time)}."
    return "\n\n".join([f"### {path.name}", said, size, "\n".join(f"    {each}" for each in commands)])


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
    begun = time.get("start", 0.0)
    seconds = begun + (time["seconds"] - begun) * spec.num_rounds / time["rounds"]
    limits = ((120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h"))
    words = next(f"{seconds / unit:.0f} {name}" for below, unit, name in limits if seconds < below)
    return words if time["rounds"] == spec.num_rounds else f"about {words}, from {time['rounds']} rounds"


def measure(names: Sequence[str], rounds: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs specs, and returns the CPU seconds and rounds of each; if not all rounds, also the seconds of a start."""
    start = {"start": _run_s("quickstart", 1)} if rounds else {}
    for name in names:
        whole = read_spec(ROOT / "experiments" / f"{name}.yaml", []).num_rounds
        some = min(rounds or whole, whole)
        yield name, {"seconds": _run_s(name, some), "rounds": some, **(start if some < whole else {})}


def _run_s(name: str, rounds: int) -> float:
    """Returns the CPU seconds of all processes of a run."""
    path = ROOT / "experiments" / f"{name}.yaml"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "strata.main", "run", str(path), f"num_rounds={rounds}", "--local"]
        before = _children_s()
        subprocess.run([*command, "--runs-dir", folder], check=True)  # noqa: S603 - our own command
        return round(_children_s() - before, 1)


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
