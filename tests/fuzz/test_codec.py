"""Any bytes give a record or an error of the codec, within bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.wire import codec
from tests.forked_strata import run
from tests.fuzz.bodies import N_SEATS, Sample, mutated, outcome
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def test_real_bodies_round_trip_byte_by_byte(samples: list[Sample]) -> None:
    assert {"fedavg /visits order", "fedavg /rounds answer", "probe_refuse /uploads answer"} <= {
        s.name for s in samples
    }
    for sample in samples:
        body = bytes(sample.body)
        assert codec.encode(codec.decode(sample.kind, body, model=sample.model, n_seats=N_SEATS)).join() == body, (
            sample.name
        )


@EXAMPLES
@given(which=st.integers(0, 10**6), random=st.randoms(use_true_random=False))
def test_a_real_body_that_was_changed_is_read_or_refused(samples: list[Sample], which: int, random: Random) -> None:
    sample = samples[which % len(samples)]
    outcome(sample, mutated(sample.body, random))


@EXAMPLES
@given(which=st.integers(0, 10**6), body=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(samples: list[Sample], which: int, body: bytes) -> None:
    outcome(samples[which % len(samples)], body)


def test_the_mutations_cause_both_successful_reads_and_refusals(samples: list[Sample]) -> None:
    """A fuzzer is useless if all its cases fail at the first check."""
    random = Random(7)
    ends = [outcome(s, mutated(s.body, random)) for s in samples for _ in range(20)]
    assert {"read", "WireError", "TooLarge"} <= set(ends)
    assert len(ends) / 50 < ends.count("read") < len(ends) / 2


@pytest.mark.slow
def test_hostile_bodies_are_refused_within_bounded_memory() -> None:
    done = run(module="tests.fuzz.hostile")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 10
    wrong = {name: case for name, case in found.items() if case["ended"] not in ("WireError", "TooLarge")}
    assert not wrong


@pytest.mark.slow
def test_the_memory_bound_can_be_broken() -> None:
    """Without the codec's limit, a hostile body exceeds the memory."""
    done = run("--without-limits", module="tests.fuzz.hostile")
    assert "MemoryError" in {case["ended"] for case in json.loads(done.stdout).values()}


@pytest.mark.slow
def test_the_coverage_guided_fuzzer_finds_nothing_in_a_short_run(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python")
    command = [sys.executable, "-m", "tests.fuzz.guided", str(tmp_path), "-runs=1000", "-seed=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 1000 runs" in done.stderr, done.stderr[-3000:]
