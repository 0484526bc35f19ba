"""`strata.local` with real processes: they end with the block, the object or the program, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

import strata
from shared.core.errors import BadInput, Conflict
from shared.core.tensors import digest
from tests.fork_server import forked_servers
from tests.strata.test_real import left_behind
from tests.waits import until

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[3]
SMALL = {"name": "real", "seed": 3, "num_rounds": 2, "data": {"name": "digits", "n_train": 400}}

BLOCKS = """
import gc, sys, strata
from tests.strata.test_real import left_behind
from pathlib import Path

tmp = Path(sys.argv[1])
if sys.argv[2] == "dropped":
    try:
        with strata.local(edges=1, devices=2, agents=1) as cloud:
            print("started", len(left_behind(tmp)) > 4)
            raise RuntimeError("the block fails")
    except RuntimeError as error:
        print(error, len(left_behind(tmp)))  # this process itself has the mark
cloud = strata.local(edges=1, devices=2, agents=1)
run = cloud.run(data="digits", num_rounds=1)
del cloud
gc.collect()
print("the run keeps its cloud:", run.wait().status)
if sys.argv[2] == "dropped":
    del run
    gc.collect()
    print("dropped", len(left_behind(tmp)))
elif sys.argv[2] == "killed":
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with a separate temporary folder, so that leftovers are found."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}


@pytest.fixture
def shared_imports() -> Iterator[None]:
    """Topologies of this process fork their fork server from the session's."""
    with forked_servers():
        yield


def script(tmp_path: Path, way: str) -> list[str]:
    return [sys.executable, "-c", BLOCKS, str(tmp_path / "tmp"), way]


@pytest.mark.parametrize("way", ["exit", "dropped"])
def test_nothing_is_left_of_a_failed_block_a_dropped_object_or_an_ended_program(
    way: str, tmp_path: Path, env: dict[str, str]
) -> None:
    done = subprocess.run(script(tmp_path, way), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = ["started True", "the block fails 1", "the run keeps its cloud: completed", "dropped 1"]
    assert done.stdout.splitlines() == (lines if way == "dropped" else lines[2:3])
    assert left_behind(tmp_path / "tmp") == []


def test_no_process_survives_a_killed_program(tmp_path: Path, env: dict[str, str]) -> None:
    with subprocess.Popen(
        script(tmp_path, "killed"), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any(line == "up\n" for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    until("the end of all", lambda: not any(name.isdecimal() for name in left_behind(tmp_path / "tmp")))


@pytest.mark.usefixtures("shared_imports")
def test_a_local_cloud_of_a_thread_that_ended_trains_scales_and_sweeps(tmp_path: Path) -> None:
    """The kernel ends processes with the thread that started them: it must not be the caller's."""
    found: list[strata.Cloud] = []
    starter = threading.Thread(
        target=lambda: found.append(strata.local(edges=2, devices=4, agents=2, runs_dir=tmp_path / "runs"))
    )
    starter.start()
    starter.join()
    with found[0] as cloud:
        run = cloud.run(SMALL).wait(progress=False)
        assert (run.spec.num_edges, run.spec.num_devices) == (2, 4)
        assert run.folder == (tmp_path / "runs" / run.id).resolve()
        assert digest(load_file(run.folder / "model.safetensors")) == digest(run.model()) == run.info.model_sha256
        cloud.scale(5)
        until("five devices", lambda: cloud.topology().n_devices == 5)
        swept = cloud.sweep({**SMALL, "num_devices": 4, "num_edges": 2}, {"seed": [3, 4]}, progress=False)
        assert swept.completed
        assert swept.runs[0].info.model_sha256 == run.info.model_sha256
        assert swept.plot().save(tmp_path / "compare.png").stat().st_size > 10_000
    with pytest.raises(Conflict, match="is closed"):
        cloud.topology()
    assert [row.round_no for row in run.rounds()] == [1, 2]


def test_a_local_topology_that_cannot_be_is_refused_before_it_starts() -> None:
    with pytest.raises(BadInput) as refused:
        strata.local(edges=2, devices=4, agents=5)
    assert refused.value.field == "agents"


@pytest.mark.usefixtures("shared_imports")
def test_a_sweep_starts_a_topology_of_its_own(tmp_path: Path) -> None:
    spec = {**SMALL, "num_devices": 3, "num_edges": 1}
    with pytest.raises(BadInput, match="lr: "):
        strata.sweep(spec, {"lr": [0.1, -1]}, runs_dir=tmp_path)
    found = strata.sweep(strata.Spec(**spec), {"lr": [0.05, 0.1]}, agents=1, runs_dir=tmp_path, progress=False)
    assert found.completed
    assert len({run.info.model_sha256 for run in found.runs}) == 2
    assert not (found.folder / "state").exists()
