"""Exports of runs to other programs, checked with the programs' own readers."""

from __future__ import annotations

import csv
import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.errors import BadInput, Conflict, NotFound, Unreachable
from shared.core.scores import Spread
from shared.results.manifest import Manifest
from shared.results.tracking.mlflow import MlflowServer
from shared.results.tracking.scalars import Tracked, read_tracked
from shared.results.tracking.tensorboard import write_tensorboard
from shared.results.writer import write_results
from shared.run_records.rounds import Evaluation
from shared.run_records.visits import FailureInfo
from tests.mlflow_server import Mlflow
from tests.strata.conftest import Strata, strata  # noqa: F401  a fixture
from tests.strata.samples import SPEC, a_round, a_run


def in_folder(folder: Path, **changes: Any) -> Path:
    lost = FailureInfo(seat=0, reason="lost", detail="gone")
    own = {"own": Spread.of([0.2, 0.4])}
    rounds = [
        a_round(1, energy_j=2.0, clients=own),
        a_round(2, failures=(lost, lost), evaluation=None),
        a_round(2, kind="evaluate", evaluation={"global": Evaluation(n=9, accuracy=0.7, loss=0.5)}, train_loss=None),
    ]
    info = a_run(run=folder.name, **changes)
    write_results(folder, info, rounds, model=None, manifest=Manifest.of(info))
    return folder


@pytest.fixture
def tracked(tmp_path: Path) -> Tracked:
    return read_tracked(in_folder(tmp_path / "runs" / "r1"))


def test_runs_are_exported_as_figures_parameters_and_tags(tracked: Tracked) -> None:
    first, second, last = tracked.steps
    assert first.figures["accuracy/global"] == 0.91
    assert first.figures["loss/train"] == 1.0
    assert first.figures["clients_own/mean"] == pytest.approx(0.3)
    assert first.figures["clients_own/max"] == 0.4
    assert (first.figures["bytes/device_bytes_up"], first.figures["energy_j"]) == (150.0, 2.0)
    assert (first.figures["failures/lost"], first.figures["failures/timeout"]) == (0.0, 1.0)
    assert (second.figures["failures/lost"], second.figures["time/simulated_s"]) == (2.0, 8.0)
    assert "accuracy/global" not in second.figures
    assert last.figures == {"final_accuracy/global": 0.7, "final_loss/global": 0.5}
    assert [step.at_s - tracked.begun_s for step in tracked.steps] == [0.5, 1.0, 1.5]
    assert (tracked.params["seed"], tracked.params["partition.name"]) == ("7", "iid")
    assert tracked.tags["strata.spec_sha256"] == SPEC.digest()


def test_a_spec_with_open_numbers_gives_no_parameters_yet(tmp_path: Path) -> None:
    assert read_tracked(in_folder(tmp_path / "r1", resolved=False)).params == {}


def test_tensorboard_reads_each_figure_once_after_repeated_exports(tracked: Tracked, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        write_tensorboard(tracked, tmp_path / "tb")
    found = EventAccumulator(str(tmp_path / "tb"))
    found.Reload()
    wanted = {name for step in tracked.steps for name in step.figures}
    assert set(found.Tags()["scalars"]) == wanted
    events = found.Scalars("time/simulated_s")
    assert [(event.step, event.value) for event in events] == [(1, 4.0), (2, 8.0)]
    assert events[1].wall_time == pytest.approx(tracked.begun_s + 1.0)
    assert len([path for path in (tmp_path / "tb").iterdir() if path.is_file()]) == 1


def to(server: Any, uri: str = "http://mlflow.test") -> MlflowServer:
    return MlflowServer(uri, httpx2.MockTransport(server))


async def test_mlflow_has_each_run_once_with_its_final_status(tracked: Tracked) -> None:
    server = Mlflow()
    for _ in range(2):
        async with to(server) as tracker:
            await tracker.write(tracked, "mine")
    (run,) = server.runs.values()
    assert server.experiments == {"mine": "1"}
    assert (run["name"], run["status"], run["end_time"]) == ("small", "FINISHED", round(1000 * tracked.ended_s))
    assert len(run["metrics"]) == sum(len(step.figures) for step in tracked.steps)
    assert ("accuracy/global", 1, round(1000 * tracked.begun_s) + 500, 0.91) in run["metrics"]
    assert (run["params"]["num_rounds"], run["tags"]["strata.algorithm"]) == ("3", "fedavg")


@pytest.mark.parametrize(("status", "exported"), [("failed", "FAILED"), ("stopped", "KILLED"), ("running", "RUNNING")])
async def test_mlflow_gets_the_final_status_of_a_run(tmp_path: Path, status: str, exported: str) -> None:
    server = Mlflow()
    async with to(server) as client:
        await client.write(read_tracked(in_folder(tmp_path / "r1", status=status)))
    (run,) = server.runs.values()
    assert run["status"] == exported
    assert (run["end_time"] is None) == (status == "running")


async def test_names_that_mlflow_refuses_are_replaced(tracked: Tracked) -> None:
    from dataclasses import replace

    server = Mlflow()
    async with to(server) as tracker:
        await tracker.write(replace(tracked, params={"odd$key": "x" * 9000, **{f"p{n}": "1" for n in range(250)}}))
    (run,) = server.runs.values()
    assert len(run["params"]["odd_key"]) == 6000
    assert len(run["params"]) == 251


async def test_an_unreachable_or_refusing_server_is_named(tracked: Tracked) -> None:
    def refuse_connection(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectTimeout("timed out", request=request)

    with pytest.raises(Unreachable, match=r"MLflow at http://mlflow.test does not answer"):
        async with to(refuse_connection) as tracker:
            await tracker.write(tracked)
    refused = httpx2.Response(403, json={"message": "not yours"})
    with pytest.raises(Conflict, match="not yours"):
        async with to(lambda _: refused) as tracker:
            await tracker.write(tracked)
    for uri in ("file:///tmp/mlruns", "sqlite:///m.db", "databricks", "http://"):
        with pytest.raises(BadInput, match="not the address"):
            to(refuse_connection, uri)


async def test_a_password_in_the_address_is_used_and_not_shown(tracked: Tracked) -> None:
    seen: list[str] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"])
        return httpx2.Response(401, json={"message": "no"})

    with pytest.raises(Conflict) as refused:
        async with to(refuse, "http://ann:s3cret@mlflow.test:81/") as tracker:
            await tracker.write(tracked)
    assert seen == [f"Basic {b64encode(b'ann:s3cret').decode()}"]
    assert "mlflow.test:81" in refused.value.detail
    assert "s3cret" not in refused.value.detail


def test_a_missing_tensorboard_package_is_named_with_its_extra(
    tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(NotFound, match=r"stratafl\[tensorboard\]"):
        write_tensorboard(tracked, tmp_path / "tb")
    assert not (tmp_path / "tb").exists()


async def test_a_token_is_sent(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    server = Mlflow()
    async with to(server) as tracker:
        await tracker.write(tracked)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer t0ken"}


def test_tables_have_a_row_for_each_round(strata: Strata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    in_folder(tmp_path / "runs" / "r1")
    result = strata("export", "r1", "--to", "ndjson")
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert {row["run"] for row in rows} == {"r1"}
    assert [(row["round_no"], row["kind"]) for row in rows] == [(1, "train"), (2, "train"), (2, "evaluate")]
    assert strata("export", "r1", "--to", "csv", "-o", "out.csv").code == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["accuracy/global"] for row in table] == ["0.91", "", ""]
    assert table[2]["final_accuracy/global"] == "0.7"


def test_mlflow_without_an_address_says_so(strata: Strata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    in_folder(tmp_path / "runs" / "r1")
    result = strata("export", "r1", "--to", "mlflow")
    assert (result.code, "MLFLOW_TRACKING_URI is not set" in result.err) == (1, True)


def test_a_run_is_followed_to_its_end_although_the_server_restarts(
    strata: Strata,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.test")
    folder = in_folder(tmp_path / "runs" / "r1", status="running")
    errors = iter([Unreachable("MLflow is away"), None, None])
    seen: list[tuple[str, int]] = []

    async def write(self: MlflowServer, tracked: Tracked, experiment: str) -> str:
        if (error := next(errors)) is not None:
            raise error
        seen.append((tracked.info.status, len(tracked.steps)))
        return "m1"

    def later(seconds: float) -> None:
        if seen:  # it was exported during the run; then it ends after another round
            info = a_run(run="r1", status="completed")
            write_results(folder, info, [a_round(3)], model=None, manifest=Manifest.of(info))

    monkeypatch.setattr(MlflowServer, "write", write)
    monkeypatch.setattr("strata.commands.export.time.sleep", later)
    result = strata("export", "r1", "--to", "mlflow", "--follow")
    assert result.code == 0, result.err
    assert "MLflow is away; trying again" in result.err
    assert seen == [("running", 3), ("completed", 4)]
    assert strata("export", "r1", "--to", "csv", "--follow").code == 2
