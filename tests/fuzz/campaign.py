"""`make fuzz`: runs every fuzzer for a number of seconds, and prints a table of cases and failures.

`python -m tests.fuzz.campaign SECONDS [SEED]`. Failures are printed; inputs that failed are written to `.fuzz/`.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz.bodies import PROBES, Sample, mutated, other_value, outcome, record
from tests.fuzz.documents import ROOT, documents
from tests.fuzz.test_json import SPECS, parsed

MAX_FINDINGS = 5
"""A part ends after this many failures, which are likely the same."""


class Part(NamedTuple):
    """One line of the summary."""

    name: str
    n_cases: int
    n_failures: int
    seconds: float


def repeated(name: str, seconds: float, seed: int, once: Callable[[Random], None]) -> Part:
    """Tries cases until the time limit; a failure is printed with the seed that reproduces it."""
    began, n_cases, n_failures = time.monotonic(), 0, 0
    while time.monotonic() - began < seconds and n_failures < MAX_FINDINGS:
        try:
            once(Random(f"{seed}-{n_cases}"))
        except Exception:
            n_failures += 1
            print(f"{name}, case {seed}-{n_cases}:\n{traceback.format_exc()}", flush=True)
        n_cases += 1
    return Part(name, n_cases, n_failures, time.monotonic() - began)


def codec(samples: list[Sample], random: Random) -> None:
    """Decodes a changed body."""
    sample = random.choice(samples)
    outcome(sample, mutated(sample.body, random))


def specs(random: Random) -> None:
    """Parses a changed spec."""
    raw = random.choice(SPECS)
    for _ in range(random.randint(1, 3)):
        raw = other_value(raw, random)
    parsed(raw)


def guided(seconds: float, seed: int) -> Part:
    """Runs the coverage-guided fuzzer in a process of its own."""
    if find_spec("atheris") is None:
        print("atheris is not installed here: the coverage-guided part is left out", flush=True)
        return Part("codec, guided by coverage", 0, 0, 0.0)
    began, corpus = time.monotonic(), ROOT / ".fuzz"
    corpus.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.guided", str(corpus), f"-max_total_time={seconds:.0f}"]
    command += [f"-seed={seed}", "-print_final_stats=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 300, check=False)
    if done.returncode:
        print(done.stderr[-5000:], flush=True)
    counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    n_cases = int(counted.group(1)) if counted else 0
    return Part("codec, guided by coverage", n_cases, int(done.returncode != 0), time.monotonic() - began)


def endpoints(seconds: float, seed: int) -> Iterator[Part]:
    """Tries every endpoint of every tier."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        for found in documents(Path(folder), n_examples=200, seed=seed, seconds=max(int(seconds / 3), 1)):
            if found.status:
                print(found.output, flush=True)
            yield Part(f"endpoints of {found.tier}", found.n_cases, int(found.status != 0), time.monotonic() - began)
            began = time.monotonic()


def main() -> int:
    """Runs all parts and prints the table; the exit status is 1 if any failed."""
    seconds = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    os.environ["STRATA_PLUGINS"] = PROBES
    with tempfile.TemporaryDirectory() as folder:
        samples = asyncio.run(record(Path(folder)))
    parts = [
        repeated("codec, changed bodies", seconds, seed, lambda random: codec(samples, random)),
        guided(seconds, seed),
        repeated("specs", seconds / 3, seed, specs),
        *endpoints(seconds, seed),
    ]
    print(f"\nseed {seed}\n{'part':28}{'cases':>10}{'failures':>10}{'seconds':>9}")
    for part in parts:
        print(f"{part.name:28}{part.n_cases:>10,}{part.n_failures:>10}{part.seconds:>9.0f}")
    return int(any(part.n_failures for part in parts))


if __name__ == "__main__":
    sys.exit(main())
