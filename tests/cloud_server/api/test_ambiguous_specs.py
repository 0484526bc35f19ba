"""Specs that can be read in two ways are refused with the key or field, from files and by the API."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from strata.spec_files import read_spec
from tests.federation import Federation

JSON = {"content-type": "application/json"}
TEXT = '{"spec": {"lr": 0.1}}'


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b'{"spec": {"lr": 0.1, "lr": 0.2}}', 422, "lr: the key comes twice"),
        (b'{"spec": {"data": {"name": "digits", "name": "mnist"}}}', 422, "name: the key comes twice"),
        (b'{"spec": {}, "spec": {"seed": 1}}', 422, "spec: the key comes twice"),
        (TEXT.encode("utf-16"), 400, "UTF-8"),
        (TEXT.encode("utf-16-le"), 400, "UTF-8"),
        (TEXT.encode("utf-32"), 400, "UTF-8"),
        (TEXT.encode("utf-8-sig"), 400, "BOM"),
    ],
)
@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_the_api_refuses_what_has_two_meanings(content: bytes, status: int, said: str, fed: Federation) -> None:
    refused = await fed.client.post("/runs", content=content, headers=JSON)
    assert (refused.status_code, said in refused.json()["detail"]) == (status, True), refused.text
    assert (await fed.client.get("/runs")).json() == {"runs": [], "unreadable": []}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("lr: 0.1\nseed: 1\nlr: 0.2\n", "lr"),
        ("data:\n  name: digits\n  name: mnist\n", "name"),
        ('{"seed": 1, "seed": 2}', "seed"),
        ('lr: 0.1\n"lr": 0.2\n', "lr"),
    ],
)
def test_a_file_with_a_key_twice_is_refused(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match="the key comes twice") as refused:
        read_spec(path)
    assert refused.value.field == key


def test_what_a_mapping_merges_it_may_replace(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("timeouts: &t {visit_s: 1, ready_s: 2}\n", encoding="utf-8")
    assert read_spec(path, ["timeouts={<<: {visit_s: 1, ready_s: 2}, ready_s: 3}"]).timeouts.ready_s == 3


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"lr": "0.1"}, "lr"),
        ({"lr": True}, "lr"),
        ({"num_rounds": "3"}, "num_rounds"),
        ({"num_rounds": 3.0}, "num_rounds"),
        ({"num_rounds": True}, "num_rounds"),
        ({"twins": "yes"}, "twins"),
        ({"twins": 1}, "twins"),
        ({"timeouts": {"visit_s": "5"}}, "timeouts.visit_s"),
        ({"algorithm": {"name": "fedprox", "params": {"mu": "0.1"}}}, "algorithm.params.mu"),
        ({"devices": {"profile": {"name": "standard", "compute_sps": "7"}}}, "devices.profile.compute_sps"),
    ],
)
def test_a_text_is_no_number_and_a_number_no_truth(raw: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_spec(raw)
    assert str(refused.value.field).startswith(field)


def test_a_whole_number_is_a_number_with_a_point_too() -> None:
    assert parse_spec({"lr": 1}).lr == 1.0


@pytest.mark.parametrize("text", ["0.001", "1e-3", "1E-3", "1.e-3", "+1.0e-3", "10e-4"])
def test_the_command_line_reads_numbers_as_yaml_and_json_write_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("seed: 1\n", encoding="utf-8")
    assert read_spec(path, [f"lr={text}"]).lr == 0.001
