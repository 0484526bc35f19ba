"""The commands against a fake cloud, and against results folders where no cloud runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from shared.core.versions import VERSION
from shared.results.manifest import Manifest
from shared.results.sweeps import Combination, Sweep
from shared.results.writer import write_results
from strata.launcher.topology import Topology
from strata.runs import progress, run_and_wait
from tests.fork_server import shared_fork_server
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FILES, FakeCloud
from tests.strata.samples import a_round, a_run, a_seat, put_run
from tests.waits import HANG_S, until

ROOT = Path(__file__).resolve().parents[3]


def in_folder(runs: Path, run: str = "r9", **changes: object) -> Path:
    return put_run(runs / run, [a_round(1), a_round(2)], **changes)


# ---- run


def test_run_ends_with_one_json_object_or_a_table(strata: Strata, url: str, cloud: FakeCloud, spec_file: Path) -> None:
    changes = ("lr=0.2", "partition.alpha=0.1", "partition.name=dirichlet")
    result = strata("run", spec_file, *changes, "--url", url, "--format", "json")
    assert result.code == 0
    last = json.loads(result.out.splitlines()[-1])
    known = {"run": "r2", "status": "completed", "rounds": 3, "accuracy": 0.93, "accuracy_of": "global model"}
    known |= {"loss": 0.3, "bytes_up": 600, "bytes_down": 6000, "wall_s": 1.5, "simulated_s": 12.0}
    assert {**last, **known, "model_sha256": "ab" * 32, "results": None} == last
    assert (cloud.specs[0]["lr"], cloud.specs[0]["partition"]["alpha"]) == (0.2, 0.1)
    assert "round 3/3" in result.err
    for words in (("show", "r2"), ("show", "latest"), ("watch", "latest")):
        assert json.loads(strata(*words, "--url", url, "--format", "json").out.splitlines()[-1]) == last
    assert len(cloud.keys[0] or "") >= 16
    table = strata("run", spec_file, "--url", url).out
    assert all(f"9{number}.00 %" in table for number in (1, 2, 3))
    cloud.ends_as = "failed"
    failed = strata("run", spec_file, "--url", url)
    assert (failed.code, "no device left" in failed.out) == (1, True)


@pytest.mark.parametrize(
    ("fault", "starts"), [({"breaks_after": 6}, [None, "6"]), ({"busy_times": 2}, [None])], ids=["broken", "too many"]
)
def test_a_stream_of_events_continues_where_it_broke_and_is_asked_for_again(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, fault: dict[str, int], starts: list[str | None]
) -> None:
    vars(cloud).update(fault)
    result = strata("run", spec_file, "--url", url, "--format", "json")
    assert (result.code, cloud.busy_times, cloud.stream_starts) == (0, 0, starts)
    assert json.loads(result.out.splitlines()[-1])["rounds"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run small.yaml lr=99 --url URL", "lr: too large\n"),
        ("run small.yaml num_roundz=3", "num_roundz: unknown field; did you mean 'num_rounds'?\n"),
        ("run small.yaml mu=0.1 algorithm=fedprox", "mu: unknown field; did you mean 'algorithm.params.mu'?\n"),
        ("run small.yaml alpha=1 partition=dirichlet", "alpha: unknown field; did you mean 'partition.alpha'?\n"),
        ("run small.yaml algorithm=fedprx", "algorithm.name: unknown algorithm 'fedprx'; did you mean 'fedprox'? "),
        (
            "run small.yaml num_edges=9 num_devices=20 --url URL",
            "num_edges 9: the cloud has 1 edge; `strata scale edge=9`",
        ),
        ("run small.yaml data=mnist_m", "data.name: mnist_m cannot be downloaded"),
        ("run small.yaml num_devices=20 partition=by_writer", "partition.name: by_writer needs a data set with "),
        (
            "run small.yaml num_devices=20 partition.name=by_group partition.n_groups=11",
            "partition.n_groups: n_groups",
        ),
        ("run small.yaml num_devices=20 model=cnn_1d", "model.name: cnn_1d takes signals"),
        ("show r77 --url URL", "no run r77\n"),
        ("edges --url http://127.0.0.1:9", "no cloud answers at http://127.0.0.1:9"),
    ],
)
def test_what_is_refused_is_one_red_line_and_nothing_starts(
    strata: Strata, url: str, spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.setattr(run_and_wait, "Topology", partial(Topology, fork=shared_fork_server()))
    monkeypatch.setenv("STRATA_DATA_DIR", str(tmp_path))
    result = strata(*words.replace("URL", url).split())
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: {message}"), result.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words",
    ["run small.yaml no_equals_sign", "run", "ls --format xml", "nonsense", "run small.yaml --url URL --agents 2"],
)
def test_wrong_usage_exits_with_two(strata: Strata, url: str, spec_file: Path, words: str) -> None:
    assert strata(*words.replace("URL", url).split()).code == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("edges", 1, "`strata up`"),
        ("down", 0, "docker compose down"),
        ("--version", 0, f"stratafl {VERSION}\n"),
        ("doctor", 1, "STRATA_REDIS_SERVER=/nowhere/redis-server"),
        ("rm latest --url URL", 0, "removed r1\n"),
        ("show latest --plots --url URL", 1, "run r1 has no results folder in runs: `strata pull r1` fetches it"),
    ],
)
def test_commands_say_what_they_did_or_what_is_missing(
    strata: Strata, url: str, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch, words: str, code: int, said: str
) -> None:
    monkeypatch.setenv("STRATA_REDIS_SERVER", "/nowhere/redis-server")
    result = strata(*words.replace("URL", url).split())
    assert (result.code, said in result.out + result.err) == (code, True)
    assert (("DELETE", "/runs/r1") in cloud.seen) == words.startswith("rm")


def test_newest_evaluation_is_shown_during_the_run(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_READ_EVERY_S", 0.0)
    cloud.n_rounds, cloud.waits_for_reads = 1, True
    result = strata("run", spec_file, "--url", url)
    assert "round 1/1  accuracy 10.00 %  loss 1.0000" in result.err


@pytest.mark.whole
def test_interrupt_stops_the_run(url: str, cloud: FakeCloud, spec_file: Path) -> None:
    cloud.holds = True
    command = [sys.executable, "-m", "strata.main", "run", str(spec_file), "--url", url, "--format", "json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until("the stream of events", lambda: cloud.stream_starts)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    assert ("POST", "/runs/r2/stop") in cloud.seen
    assert process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["status"] == "stopped"


# ---- runs


def test_show_reads_the_results_folder_when_nothing_runs(strata: Strata, tmp_path: Path) -> None:
    folder = in_folder(tmp_path / "runs", "old", created_at="2026-01-01T00:00:00Z")
    in_folder(tmp_path / "runs", "new", created_at="2026-01-03T00:00:00Z", accuracy=0.5)
    latest = json.loads(strata("show", "latest", "--format", "json").out)
    assert (latest["run"], latest["accuracy"]) == ("new", 0.5)
    result = strata("show", "old")
    assert result.code == 0
    assert "91.00 %" in result.out
    assert "92.00 %" in result.out
    assert json.loads(strata("show", "old", "--format", "json").out)["results"] == str(folder.resolve())


def test_show_takes_the_name_of_one_run(strata: Strata, tmp_path: Path) -> None:
    for run, name in (("r1", "mine"), ("r2", "ours"), ("r3", "ours")):
        put_run(tmp_path / "runs" / run, name=name)
    assert json.loads(strata("show", "mine", "--format", "json").out)["run"] == "r1"
    assert "2 runs are named 'ours'; give the id of one, the newest are r" in strata("show", "ours").err


def test_show_looks_for_a_name_in_the_runs_folder_only(strata: Strata, tmp_path: Path) -> None:
    in_folder(tmp_path / "runs", name="mine")
    in_folder(tmp_path, "mine", name="another")
    assert json.loads(strata("show", "mine", "--format", "json").out)["run"] == "r9"
    (tmp_path / "runs" / "linked").symlink_to(in_folder(tmp_path / "elsewhere", "target"))
    assert json.loads(strata("show", "linked", "--format", "json").out)["run"] == "target"
    assert "no run, name of a run or results folder" in strata("show", 300 * "x").err


def test_show_of_a_sweep_says_that_it_is_no_run(strata: Strata, tmp_path: Path) -> None:
    in_folder(tmp_path / "runs", "r1")
    in_folder(tmp_path / "runs", "r2")
    both = tuple(Combination(values={}, spec_digest="", run=run) for run in ("r1", "r2"))
    sweep = Sweep(sweep="s", name="swept", arguments=(), keys=(), combinations=both)
    (tmp_path / "runs" / "swept").mkdir()
    (tmp_path / "runs" / "swept" / "sweep.json").write_text(sweep.model_dump_json())
    assert "no run, name of a run or results folder 'swept'" in strata("show", "swept").err


def test_show_counts_visits_by_the_algorithms_labels(strata: Strata, tmp_path: Path) -> None:
    labelled = {"device_bytes_up": 5_000_000, "report_bytes": 1_000_000, "retired": {1: "refused 8 times"}}
    rounds = [a_round(1, labels={"A": 3, "leader": 2}, **labelled), a_round(2, labels={"C": 7}, retired={})]
    put_run(tmp_path / "runs" / "r9", rounds)
    put_run(tmp_path / "runs" / "plain", [a_round(1)])
    table = strata("show", "r9").out.splitlines()
    head = next(index for index, line in enumerate(table) if "leader" in line)
    cells = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in table[head:]]
    assert cells[0] == ["round", "A", "C", "leader", "retired", "announcements", "updates"]
    assert cells[2] == ["1", "3", "0", "2", "1", "1 MB", "4 MB"]
    assert cells[3][:5] == ["2", "0", "7", "0", "0"]
    assert "reports" not in strata("show", "plain").out


@pytest.mark.whole
def test_show_plots_writes_the_pictures_into_the_results_folder(strata: Strata, tmp_path: Path) -> None:
    folder = in_folder(tmp_path / "runs")
    assert not (folder / "plots").exists()
    result = strata("show", "latest", "--plots", "--round", 1)
    assert result.code == 0
    paths = [Path(line) for line in result.out.splitlines()]
    assert [path.stem for path in paths] == ["accuracy", "bytes", "accuracy_by_time", "accuracy_by_bytes"]
    assert {path.resolve() for path in paths} == set((folder / "plots").iterdir())
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert strata("show", "latest", "--plots", "--round", 9).code == 1


@pytest.mark.parametrize("run", ["../secret", "..", "a/b"])
def test_show_reads_no_folder_outside_the_runs_folder(strata: Strata, tmp_path: Path, run: str) -> None:
    in_folder(tmp_path, "secret")
    in_folder(tmp_path / "runs" / "a", "b")
    assert strata("show", run).code == 1


def test_ls_lists_the_newest_first_from_both_sources(strata: Strata, url: str, tmp_path: Path, spec_file: Path) -> None:
    def listed(*words: object) -> list[str]:
        return [run["run"] for run in json.loads(strata("ls", *words, "--format", "json").out)]

    in_folder(tmp_path / "runs", "r9")
    assert listed() == ["r9"]
    shown = json.loads(strata("show", "r9", "--url", url, "--format", "json").out)
    assert shown["run"] == "r9", "of an earlier topology, which the cloud does not know"
    strata("run", spec_file, "--url", url)
    assert listed("--url", url) == ["r2", "r1"]
    assert listed("--url", url, "--limit", 1) == ["r2"]


def test_a_run_is_named_by_its_name_unless_several_have_it(strata: Strata, url: str, cloud: FakeCloud) -> None:
    name = cloud.runs["r1"].name
    assert strata("pause", name, "--url", url).out.startswith("run r1: paus")
    cloud.runs["r2"] = cloud.runs["r1"].replace(run="r2")
    refused = strata("pause", name, "--url", url)
    assert refused.code == 1
    assert f"2 runs are named {name!r}; give the id of one, the newest are r2, r1" in refused.err


@pytest.mark.parametrize(
    ("verb", "options", "status"),
    [
        ("pause", (), "pausing"),
        ("resume", (), "running"),
        ("resume", ("--accept-changes",), "running"),
        ("stop", (), "stopped"),
    ],
)
def test_commands_change_the_run_named_by_latest(
    strata: Strata, url: str, cloud: FakeCloud, verb: str, options: tuple[str, ...], status: str
) -> None:
    result = strata(verb, "latest", *options, "--url", url, "--format", "json")
    assert json.loads(result.out)["status"] == status
    assert ("POST", f"/runs/r1/{verb}") in cloud.seen
    assert bool(cloud.accepted) == bool(options)


def test_pull_fetches_every_file_and_the_model_if_there_is_one(
    strata: Strata, url: str, cloud: FakeCloud, tmp_path: Path
) -> None:
    def pulled(into: str) -> list[str]:
        words = ("pull", "latest", "--into", tmp_path / into, "--url", url, "--format", "json")
        found: list[str] = json.loads(strata(*words).out)["files"]
        return found

    assert pulled("here") == sorted([*FILES, "model.safetensors"])
    folder = tmp_path / "here" / "r1"
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert (folder / "model.safetensors").read_bytes() == b"tensors of global"
    assert not list(folder.rglob("*.part"))
    for resolved in (True, False):
        cloud.change("r1", rounds=0, status="failed", resolved=resolved)
        assert pulled(f"there {resolved}") == sorted(FILES)


def test_the_record_of_a_run_is_pulled_last_and_what_is_missing_is_named(
    strata: Strata, url: str, cloud: FakeCloud, tmp_path: Path
) -> None:
    pull = ("pull", "r1", "--into", tmp_path / "here", "--url", url)
    cloud.files["zzz"] = b"the last by name"
    assert strata(*pull).code == 0
    assert [path for _, path in cloud.seen if "/files/" in path or "/models/" in path][-1] == "/runs/r1/files/run.json"
    shutil.rmtree(tmp_path / "here")
    del cloud.files["run.json"]
    result = strata(*pull)
    assert (result.code, "the cloud has no results of run r1 (were they removed there" in result.err) == (1, True)
    assert (tmp_path / "here" / "r1" / "model.safetensors").exists()
    cloud.change("r1", resolved=False)  # it has rounds, but their model cannot be fetched
    result = strata(*pull)
    assert (result.code, "it has not started yet" in result.err) == (1, True)
    cloud.files |= {"model.safetensors": b"as the cloud wrote it", "run.json": b"{}"}
    assert strata(*pull).code == 0
    assert (tmp_path / "here" / "r1" / "model.safetensors").read_bytes() == b"as the cloud wrote it"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil"])
def test_pull_refuses_file_names_outside_the_folder(
    strata: Strata, url: str, cloud: FakeCloud, tmp_path: Path, name: str
) -> None:
    cloud.files[name] = b"evil"
    result = strata("pull", "r1", "--into", tmp_path / "here", "--url", url)
    assert result.code == 1
    assert "which leads out of the results folder" in result.err
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("run", ["../evil", "/tmp/evil", "..", "a/b", ""])  # noqa: S108
def test_run_whose_id_is_a_path_is_refused(
    strata: Strata, url: str, cloud: FakeCloud, tmp_path: Path, run: str
) -> None:
    cloud.runs["r1"] = a_run().model_copy(update={"run": run})
    result = strata("pull", "r1", "--into", tmp_path / "here", "--url", url)
    assert result.code == 1
    assert "did not return a valid RunInfo (at run: must match the pattern" in result.err
    assert list(tmp_path.iterdir()) == []


# ---- nodes


def test_algorithms_of_this_installation_or_of_a_given_cloud_are_listed(strata: Strata, url: str) -> None:
    found = {entry["name"]: entry for entry in json.loads(strata("algorithms", "--format", "json").out)}
    assert "McMahan" in found["fedavg"]["paper"]
    assert "mu" in found["fedprox"]["params"]["properties"]
    assert "fedprox" in strata("algorithms").out
    (of_cloud,) = json.loads(strata("algorithms", "--url", url, "--format", "json").out)
    assert of_cloud["name"] == "remote_avg"
    assert "mu=1" in strata("algorithms", "--url", url).out


def test_devices_edges_and_seats_are_listed(strata: Strata, url: str) -> None:
    (agent,) = json.loads(strata("agents", "--url", url, "--format", "json").out)
    assert (agent["name"], agent["devices"]) == ("agent-1", 5)
    (edge,) = json.loads(strata("edges", "--url", url, "--format", "json").out)
    assert edge["edge"] == "edge-1"
    seats = json.loads(strata("agents", "r1", "--url", url, "--format", "json").out)
    assert [seat["label_counts"] for seat in seats] == [[10, 20, 0], [0, 5, 7]]
    assert "10 20 0" in strata("agents", "r1", "--url", url).out


def test_twins_are_listed_for_all_edges_one_edge_or_a_device(strata: Strata, url: str, cloud: FakeCloud) -> None:
    for words in (["twins"], ["twins", "--edge", "edge-1"], ["twins", "r1", "--agent", "a1"]):
        (twin,) = json.loads(strata(*words, "--url", url, "--format", "json").out)
        assert (twin["seat"], twin["history"][0]["error_s"]) == (3, 2.0)
    assert [path for _, path in cloud.seen if "twin" in path] == ["/edges/edge-1/twins"] * 2 + ["/agents/a1/twin"]
    cloud.idle_edges = ("edge-2",)  # takes no part in the run
    assert "edge edge-2 keeps no twins of run r1" in strata("twins", "--edge", "edge-2", "--url", url).err
    result = strata("twins", "--url", url).out
    for text in ("recovering", "120 /s", "1.50 ± 0.25"):
        assert text in result


def test_doctor_prints_a_line_for_each_requirement_and_names_what_is_missing(
    strata: Strata, url: str, cloud: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"x" * 2_000_000)
    monkeypatch.setenv("STRATA_DATA_DIR", str(tmp_path))
    cloud.missing = ("a device",)
    result = strata("doctor", "--url", url, "--format", "json")
    found = {check["name"]: check for check in json.loads(result.out)}
    assert result.code == 0
    assert found["torch"]["state"] == found["data: digits"]["state"] == "ok"
    assert "redis-server (Redis " in found["redis-server"]["found"] or "(Valkey " in found["redis-server"]["found"]
    assert found["data: mnist"]["found"] == "mnist.npz, 2.0 MB"
    assert found["data: femnist"] == {
        "name": "data: femnist",
        "state": "warn",
        "found": "not found",
        "todo": "put femnist.npz into STRATA_DATA_DIR",
    }
    assert found["topology"]["todo"] == "missing: a device"
    assert {"python", "torchvision", "cores", "memory", "docker engine", "docker compose"} <= found.keys()


# ---- the connection


def test_a_token_from_the_environment_or_a_file_is_sent_to_the_api(
    strata: Strata, url: str, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cloud.token = "secret"  # noqa: S105 - made up
    assert strata("edges", "--url", url).err == "error: the API token is missing or wrong\n"
    monkeypatch.setenv("STRATA_API_TOKEN", "secret")
    assert strata("edges", "--url", url).code == 0
    monkeypatch.delenv("STRATA_API_TOKEN")
    monkeypatch.setenv("STRATA_API_TOKEN_FILE", str(tmp_path / "token"))
    result = strata("edges", "--url", url)
    assert (result.code, result.err.startswith("error: STRATA_API_TOKEN_FILE: ")) == (1, True)
    (tmp_path / "token").write_text("secret\n", encoding="ascii")
    assert strata("edges", "--url", url).code == 0


def test_help_does_not_import_torch() -> None:
    code = "import sys; from strata import main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_models_data_sets_and_partitions_are_listed_with_their_parameters(strata: Strata) -> None:
    for command, name in (("models", "mlp"), ("datasets", "digits"), ("partitions", "dirichlet")):
        rows = json.loads(strata(command, "--format", "json").out)
        (row,) = (row for row in rows if row["name"] == name)
        assert row["package"] is None
        assert name in strata(command).out


def test_seats_of_a_run_that_no_cloud_knows_are_those_of_its_folder(strata: Strata, tmp_path: Path) -> None:
    info, seats = a_run(run="r9"), [a_seat(number, faulty=number == 1, label_counts=(30, 20)) for number in range(2)]
    write_results(tmp_path / "runs" / "r9", info, [a_round(1)], model=None, manifest=Manifest.of(info), seats=seats)
    listed = json.loads(strata("agents", "r9", "--format", "json").out)
    assert listed == [seat.model_dump(mode="json") for seat in seats]
    table = strata("agents", "latest").out
    assert "30 20" in table
    assert table.count("faulty") == 1
    assert "no run, name of a run or results folder 'r8'" in strata("agents", "r8").err
