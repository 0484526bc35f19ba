"""Writing and reading the results folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from shared.core.errors import NotFound
from shared.core.files import write_file
from shared.federation.inference import Trained
from shared.federation.spec_parser import parse_spec
from shared.results.folder import (
    file_names,
    read_round,
    read_rounds,
    read_run,
    summary,
)
from shared.results.manifest import Manifest
from shared.results.matplotlib_figures import SCREEN
from shared.results.reader import read_edges
from shared.results.report.figures import write_pictures
from shared.results.writer import write_results
from shared.run_records.provenance import Provenance
from shared.run_records.rounds import EdgeRow, Evaluation, RoundDetail, RoundInfo
from shared.run_records.visits import FailureInfo
from tests.strata.conftest import Strata
from tests.strata.samples import SPEC, a_round, a_run, put_run, some_seats

TABLES = ("rounds.csv", "devices.ndjson", "edges.ndjson", "links.csv")


def lines_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def written(folder: Path, *rounds: RoundInfo, status: str = "running") -> Path:
    return put_run(folder, rounds, run="r1", status=status, rounds=len(rounds))


def without_visits(*rounds: RoundDetail) -> list[RoundInfo]:
    return [RoundInfo.model_validate(row.model_dump(exclude={"seats"})) for row in rounds]


def test_completed_run_writes_every_file(tmp_path: Path) -> None:
    info = a_run()
    model = {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3)}  # a view that is not contiguous
    trained = Trained({"global": model, "edge-0": model}, None)
    rounds = [a_round(n) for n in (1, 2, 3)]
    with pytest.raises(NotFound, match="no results in"):
        read_run(tmp_path)
    write_results(tmp_path, info, rounds, model=trained, manifest=Manifest.of(info), seats=some_seats())
    models = {"model.safetensors", "models/edge-0.safetensors"}
    assert set(file_names(tmp_path)) == {*TABLES, *models, "manifest.json", "run.json", "seats.ndjson", "spec.yaml"}
    assert file_names(tmp_path) == sorted(file_names(tmp_path))
    loaded = load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["w"], model["w"])
    assert int(loaded["n"]) == 3
    assert parse_spec(yaml.safe_load((tmp_path / "spec.yaml").read_text(encoding="utf-8"))).digest() == SPEC.digest()


def test_run_and_rounds_are_read_back_as_written(tmp_path: Path) -> None:
    rounds = [a_round(n) for n in (1, 2)]
    rounds[0] = rounds[0].replace(failures=(), evaluation=None, train_loss=None)
    assert read_rounds(written(tmp_path / "empty")) == ()
    assert (tmp_path / "empty" / "devices.ndjson").read_bytes() == b""
    put_run(tmp_path, rounds, a_run())
    assert read_run(tmp_path) == a_run()
    first, second = read_rounds(tmp_path)
    assert [first, second] == [RoundInfo.model_validate(row.model_dump(exclude={"seats", "edges"})) for row in rounds]
    assert second.failures[0].detail == "no answer\nin 3 s"
    assert second.retired == {1: "too slow"}
    line = lines_of(tmp_path / "rounds.csv")[1]
    assert (line["round_no"], line["kind"], line["accuracy"], line["loss"]) == ("2", "train", "0.92", "0.25")


@pytest.mark.integration
def test_round_that_lost_thousands_of_seats_is_written_read_and_drawn(tmp_path: Path) -> None:
    lost = tuple(FailureInfo(seat=n, edge="edge-1", reason="unavailable", detail="off " * 20) for n in range(5000))
    written(tmp_path, a_round(1, failures=lost), status="completed")
    assert read_rounds(tmp_path)[0].failures[4999].seat == 4999
    drawn = write_pictures(tmp_path, tmp_path / "plots", "png", SCREEN)
    assert {"accuracy", "bytes"} <= {path.stem for path in drawn}


def test_late_evaluation_joins_its_round_and_leaves_visits(tmp_path: Path) -> None:
    late = a_round(1, evaluation=None)
    written(tmp_path, late)
    written(tmp_path, a_round(2))
    ready = RoundInfo.model_validate(late.model_dump(exclude={"seats", "edges"}))
    written(tmp_path, ready.replace(evaluation={"global": Evaluation(n=10, accuracy=0.25, loss=2.0)}))
    assert [(line["round_no"], line["accuracy"]) for line in lines_of(tmp_path / "rounds.csv")] == [
        ("1", "0.25"),
        ("2", "0.92"),
    ]
    rows = [json.loads(line) for line in (tmp_path / "devices.ndjson").read_text().splitlines()]
    assert [row["round_no"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert len(lines_of(tmp_path / "links.csv")) == 8
    assert len((tmp_path / "edges.ndjson").read_text().splitlines()) == 4


def test_edges_of_each_round_are_read_back_as_written(tmp_path: Path) -> None:
    failed = EdgeRow(edge="edge-2", home=1, outcome="failed", reason="timeout")
    own = EdgeRow(edge="edge-1", home=0, outcome="used", n_used=3, own_accuracy=0.1 + 0.2, own_on={"union": 1 / 3})
    rounds = [a_round(1), a_round(2, edges=(own.replace(down_s=0.1, up_s=1e-9, simulated_s=1 / 7), failed))]
    written(tmp_path, *rounds, a_round(2, kind="evaluate"))
    assert read_round(tmp_path, 2) == RoundDetail.model_validate(rounds[1].model_dump())
    expected = [(row.round_no, row.kind, edge) for row in (*rounds, a_round(2, kind="evaluate")) for edge in row.edges]
    assert list(read_edges(tmp_path)) == expected


def test_lines_truncated_by_a_crash_and_missing_files_are_written_with_the_next_round(tmp_path: Path) -> None:
    def kept() -> dict[str, bytes]:
        return {name: (tmp_path / name).read_bytes() for name in TABLES}

    rounds = [a_round(n) for n in (1, 2)]
    written(tmp_path, *rounds)
    whole = kept()
    edges = tmp_path / "edges.ndjson"
    edges.write_bytes(whole["edges.ndjson"][:-9])
    assert [edge.edge for edge in read_round(tmp_path, 2).edges] == ["edge-1"]
    (tmp_path / "rounds.csv").write_bytes(whole["rounds.csv"][:-40])
    assert [row.round_no for row in read_rounds(tmp_path)] == [1]
    written(tmp_path, rounds[1])
    assert kept() == whole
    edges.unlink()
    assert read_round(tmp_path, 2).edges == ()
    assert list(read_edges(tmp_path)) == []
    written(tmp_path, *without_visits(*rounds))
    assert kept() == whole, "links of visits are kept"
    written(tmp_path, *rounds)
    assert kept() == whole, "nothing stands there twice"


def test_invalid_line_of_edges_is_named(tmp_path: Path) -> None:
    table = written(tmp_path, a_round(1)) / "edges.ndjson"
    for line in ('{"round_no":1,"kind":"train"}', '{"edge":"e","home":0,"outcome":"used"}', "[1]"):
        table.write_text(line + "\n")
        with pytest.raises(NotFound, match=r"edges\.ndjson, line 1"):
            list(read_edges(tmp_path))


def test_table_is_equal_whether_written_by_round_or_at_once(tmp_path: Path) -> None:
    rounds = [a_round(n) for n in (1, 2, 10)] + [a_round(10, kind="evaluate")]
    at_once = written(tmp_path / "a", *rounds)
    for row in rounds:
        written(tmp_path / "b", row)
    for name in TABLES:
        assert (tmp_path / "b" / name).read_bytes() == (at_once / name).read_bytes()
    kinds = [(line["round_no"], line["kind"]) for line in lines_of(at_once / "rounds.csv")]
    assert kinds == [("1", "train"), ("2", "train"), ("10", "train"), ("10", "evaluate")]


def test_links_sum_the_visits_of_a_seat_by_purpose(tmp_path: Path) -> None:
    links = lines_of(written(tmp_path, a_round(1)) / "links.csv")
    found = {(line["link"], line["purpose"]): (line["down_bytes"], line["up_bytes"]) for line in links}
    assert found == {
        ("edge-1/cloud", "train"): ("250", "25"),
        ("edge-2/cloud", "train"): ("250", "25"),
        ("seat-0/edge-1", "train"): ("1000", "100"),
        ("seat-1/edge-2", "evaluate"): ("500", "50"),
    }


def test_manifest_has_versions_and_gets_its_end_with_the_run() -> None:
    still = Manifest.of(a_run(status="running"), ended_at="2026-01-02T04:00:00Z")
    began = Provenance(data_digest="d", population_digest="p", versions={"torch": torch.__version__}, cpu="a cpu")
    ended = Manifest.of(a_run(provenance=began), ended_at="2026-01-02T04:00:00Z")
    assert still.ended_at is None
    assert ended.ended_at == "2026-01-02T04:00:00Z"
    assert (ended.seed, ended.spec_digest) == (7, SPEC.digest())
    assert (ended.data_digest, ended.population_digest) == ("d", "p")
    assert ended.versions["torch"] == torch.__version__
    assert (ended.cpu, ended.changes) == ("a cpu", ())
    assert still.versions["torch"] == torch.__version__
    assert still.cpu


def test_interrupted_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")

    def fails(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_summary_has_the_documented_keys(tmp_path: Path) -> None:
    found = summary(a_run(), tmp_path)
    known = {"run": "r1", "accuracy": 0.93, "accuracy_of": "global model", "results": str(tmp_path.resolve())}
    assert found | known == found
    figures = {"loss", "bytes_up", "bytes_down", "wall_s", "simulated_s", "model_sha256"}
    assert {"status", "rounds"} | figures <= found.keys()


@pytest.mark.parametrize("command", [["show", "latest"], ["show", "small"], ["compare", "small"], ["report", "r1"]])
def test_results_of_another_version_are_listed_and_every_command_says_why(
    tmp_path: Path, strata: Strata, command: list[str]
) -> None:
    written(tmp_path / "runs" / "r1")
    record = tmp_path / "runs" / "r1" / "run.json"
    record.write_text(record.read_text().replace('"phase"', '"stage"'))
    why = f"{Path('runs', 'r1', 'run.json')} is of another version: stage: unknown field"
    [listed] = json.loads(strata("ls", "--format", "json").out)
    assert (listed["run"], listed["status"], listed["reason"]) == ("r1", "unreadable", why)
    assert "unreadable" in strata("ls").out
    for cloud in ([], ["--url", "http://127.0.0.1:9"]) if command[0] == "show" else ([],):  # nothing listens there
        result = strata(*command, *cloud)
        assert (result.code, "is of another version: stage: unknown field" in result.err) == (1, True), result.err
