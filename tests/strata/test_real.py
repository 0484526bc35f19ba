"""The command with real tiers: one small experiment, as a user would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.results.folder import file_names, read_rounds
from tests.forked_strata import Command, run
from tests.process_state import processes_of
from tests.strata.conftest import Strata
from tests.waits import until

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
SPEC = "name: real\nseed: 3\nnum_rounds: 2\nnum_edges: 2\nnum_devices: 4\ndata: {name: digits, n_train: 400}\n"


@pytest.fixture
def env(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a separate temporary folder, so that leftovers are found."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "real.yaml").write_text(SPEC, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}


def left_behind(folder: Path) -> list[str]:
    """Returns the processes whose temporary folder this is, and the folder's content."""
    mark = f"TMPDIR={folder}".encode()
    found = [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_run_trains_writes_its_folder_and_leaves_no_process(
    tmp_path: Path, env: dict[str, str], strata: Strata
) -> None:
    arguments = ("run", "real.yaml", "--agents", 2, "--format", "json")
    program = "import sys\nfrom strata.main import app_entry\ntry: app_entry()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, text, launcher_has_torch = done.stdout.splitlines()
    assert launcher_has_torch == "False"  # the tiers have, and what checks the spec beside it
    result = json.loads(text)
    assert (result["status"], result["rounds"]) == ("completed", 2)
    assert len(result["model_sha256"]) == 64
    folder = Path(result["results"])
    assert folder == (tmp_path / "runs" / result["run"]).resolve()
    assert {"model.safetensors", "seats.ndjson", "links.csv", "manifest.json"} <= set(file_names(folder))
    rounds = [row for row in read_rounds(folder) if row.kind == "train"]
    assert sum(row.bytes_up for row in rounds) == result["bytes_up"]
    assert (rounds[-1].evaluation or {})["global"].accuracy == result["accuracy"]
    assert left_behind(tmp_path / "tmp") == []
    assert json.loads(strata("show", "latest", "--format", "json").out) == result
    plots = json.loads(strata("show", "latest", "--plots", "--format", "json").out)
    assert {"accuracy", "bytes", "partition", "timeline"} <= {Path(path).stem for path in plots}
    assert {Path(path).resolve().parent for path in plots} == {folder / "plots"}


def test_a_tracked_run_is_exported_when_the_command_ends(tmp_path: Path, env: dict[str, str]) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    digests = []
    for tracking in ("[]", "tensorboard"):
        done = run("run", "real.yaml", f"tracking={tracking}", "--agents", "2", "--format", "json", env=env)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        digests.append((result["model_sha256"], result["bytes_up"], result["bytes_down"]))
    assert digests[0] == digests[1]
    files = [path.name for path in (tmp_path / "runs" / "tensorboard" / result["run"]).iterdir()]
    assert len(files) == 1
    assert files[0].startswith("events.out.tfevents.")
    assert "tensorboard: 2 rounds at " in done.stderr
    note = json.loads((tmp_path / "runs" / result["run"] / "tracking.json").read_text())["tensorboard"]
    assert (note["status"], note["rounds"], note["reason"]) == ("completed", 2, None)


@pytest.mark.smoke
def test_interrupt_ends_run_and_topology(tmp_path: Path, env: dict[str, str]) -> None:
    process = Command("run", "real.yaml", "num_rounds=10000", "--agents", "2", "--format", "json", env=env)
    for line in process.stderr:
        if line.startswith("running") and "round 0/" not in line:
            break
    assert processes_of(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    result = json.loads(out.splitlines()[-1])
    assert process.returncode == 130, err
    assert result["status"] == "stopped"
    assert 1 <= result["rounds"] < 10000
    until("an empty folder", lambda: not left_behind(tmp_path / "tmp") and not processes_of(tmp_path))
