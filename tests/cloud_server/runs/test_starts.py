"""Runs that begin with the model of another run or of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.core.errors import BadInput
from shared.core.tensors import digest
from shared.federation.spec_parser import parse_spec
from tests.federation import Federation, small_spec

pytestmark = pytest.mark.layout(agent_devices=(3, 3))


async def test_a_run_begins_with_the_model_of_a_run_or_of_its_file(fed: Federation) -> None:
    """FedAvg has no other state, and the streams of a round are keyed by its number: so only the model matters."""
    first = await fed.run(small_spec(num_rounds=3))
    (fed.folder / "runs" / "own").mkdir()
    saved = fed.folder / "runs" / first.run / "model.safetensors"
    ways = [{"run": first.run}, {"file": f"{first.run}/model.safetensors"}]
    found = [await fed.run(small_spec(num_rounds=1, init=init)) for init in ways]
    seeded = await fed.run(small_spec(num_rounds=1))
    assert {info.init_sha256 for info in found} == {first.model_sha256} == {digest(load_file(saved))}
    assert len({info.model_sha256 for info in found}) == 1
    assert found[0].model_sha256 != seeded.model_sha256
    assert seeded.init_sha256 is None
    assert (found[0].accuracy or 0) > (seeded.accuracy or 0)
    manifest = json.loads((fed.folder / "runs" / found[0].run / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["init_digest"] == first.model_sha256
    await fed.client.delete(f"/runs/{first.run}")
    again = await fed.run(small_spec(num_rounds=1, init=ways[0]))  # from its results folder
    assert again.model_sha256 == found[0].model_sha256


async def refused(fed: Federation, init: dict[str, Any]) -> tuple[int, str, str]:
    answer = await fed.client.post("/runs", json={"spec": small_spec(init=init)})
    problem = answer.json()
    return answer.status_code, problem.get("field") or "", problem.get("detail") or ""


async def test_what_is_not_in_the_folders_is_refused(tmp_path: Path, fed: Federation) -> None:
    runs = fed.folder / "runs"
    runs.mkdir(exist_ok=True)
    outside = tmp_path / "secret.safetensors"
    save_file({"a": torch.ones(2)}, outside)
    (runs / "link.safetensors").symlink_to(outside)
    for name in ("nothing.safetensors", "link.safetensors"):
        status, field, detail = await refused(fed, {"file": name})
        assert (status, field) == (422, "init.file")
        assert f"no file '{name}' in the cloud's folders" in detail
    for name in ("../../secret.safetensors", str(outside), "a/../../secret.safetensors", "..\\secret"):
        status, field, detail = await refused(fed, {"file": name})
        assert (status, field) == (422, "init")
        assert "relative and without `..`" in detail
    status, field, _ = await refused(fed, {"run": "r20200101-000000-0000"})
    assert (status, field) == (422, "init.run")
    status, field, detail = await refused(fed, {"run": "r20200101-000000-0000", "model": "edge-1"})
    assert (status, field) == (422, "init.run")


async def test_a_model_that_does_not_fit_fails_the_run_and_names_the_tensor(fed: Federation) -> None:
    good = await fed.run(small_spec(num_rounds=1))
    runs = fed.folder / "runs"
    model = load_file(runs / good.run / "model.safetensors")
    name = sorted(model)[0]
    wrong: dict[str, Any] = {
        f"'{name}' is torch.float32 (3,), the run's is": {**model, name: torch.ones(3)},
        f"'{name}' is torch.float64": {**model, name: model[name].double()},
        f"it has no tensor '{name}'": {key: value for key, value in model.items() if key != name},
        "the run's model has no tensor 'zzz'": {**model, "zzz": torch.ones(1)},
        f"'{name}' is not finite": {**model, name: model[name] * torch.nan},
        "more than this model can need": {**model, "zzz": torch.ones(2**20)},
    }
    for cause, tensors in wrong.items():
        save_file(tensors, runs / "m.safetensors")
        info = await fed.run(small_spec(init={"file": "m.safetensors"}))
        assert info.status == "failed"
        assert cause in (info.reason or "")
    (runs / "m.safetensors").write_bytes(b"no tensors")
    info = await fed.run(small_spec(init={"file": "m.safetensors"}))
    assert "is not a readable safetensors file" in (info.reason or "")
    other = await fed.run(small_spec(init={"run": good.run}, model={"name": "mlp", "projection": 8}))
    assert (other.status, "init.run: " in (other.reason or "")) == ("failed", True)


@pytest.mark.whole
async def test_floats_of_fewer_bits_are_taken_without_rounding_and_said(fed: Federation) -> None:
    good = await fed.run(small_spec(num_rounds=1))
    runs = fed.folder / "runs"
    model = load_file(runs / good.run / "model.safetensors")
    halves = {name: tensor.half() for name, tensor in model.items()}
    first = sorted(model)[0]
    save_file({**halves, first: model[first].bfloat16()}, runs / "h.safetensors")
    save_file(
        {**{name: half.float() for name, half in halves.items()}, first: model[first].bfloat16().float()},
        runs / "f.safetensors",
    )
    found = [await fed.run(small_spec(num_rounds=1, init={"file": f"{name}.safetensors"})) for name in "hf"]
    assert found[0].model_sha256 == found[1].model_sha256
    assert found[0].init_sha256 == found[1].init_sha256
    assert found[0].plan[-1].endswith("; converted from bfloat16, float16, without rounding")


@pytest.mark.whole
async def test_a_model_is_taken_over_in_part_and_what_was_not_is_said(fed: Federation) -> None:
    """With a rate of nearly 0 a run ends with the model with which it began."""
    runs, small = fed.folder / "runs", {"num_rounds": 1, "lr": 1e-30}
    seeded = load_file(runs / (await fed.run(small_spec(**small))).run / "model.safetensors")
    head = {name for name in seeded if name.startswith("head.")}
    other = {name: torch.full_like(tensor, 0.125) for name, tensor in seeded.items()}
    wide = {f"module.{name}": tensor for name, tensor in other.items() if name not in head}
    wide |= {"module.head.weight": torch.ones(1000, 7), "module.fc.weight": torch.ones(3), "epoch": torch.ones(1)}
    save_file(wide, runs / "w.safetensors")
    init: dict[str, Any] = {"file": "w.safetensors", "prefix": "module.", "skip": ["head", "fc"]}
    run = await fed.run(small_spec(**small, init=init))
    assert run.status == "completed", run.reason
    model = load_file(runs / run.run / "model.safetensors")
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, seeded[name] if name in head else other[name], atol=1e-6, rtol=0)
    line = run.plan[-1]
    assert line.startswith(f"begins with {len(seeded) - len(head)} tensors of w.safetensors; drawn by the seed: head.")
    assert "not used: epoch, module.fc.weight, module.head.weight" in line
    save_file({name.removeprefix("features."): t for name, t in other.items()}, runs / "bare.safetensors")
    init = {"file": "bare.safetensors", "add_prefix": "features.", "skip": ["head"]}
    run = await fed.run(small_spec(**small, init=init))
    assert run.init_sha256 == digest(model), run.reason
    causes: dict[str, dict[str, Any]] = {
        "`init.prefix: module.` takes that away": {"file": "whole.safetensors"},
        "'head.weight' is torch.float32 (1000, 7), the run's is torch.float32 (10, ": {"file": "head.safetensors"},
        "`init.skip: [head]` leaves such tensors": {"file": "head.safetensors"},
        "`init.skip: [head.weight]` leaves such tensors": {"file": "part.safetensors"},
        "init.skip: no tensor or module is named 'haed'": {"file": "head.safetensors", "skip": ["haed"]},
        "init.prefix: no tensor begins with 'net.'": {"file": "head.safetensors", "prefix": "net."},
    }
    save_file({f"module.{name}": tensor for name, tensor in other.items()}, runs / "whole.safetensors")
    save_file(other | {"head.weight": torch.ones(1000, 7)}, runs / "part.safetensors")
    save_file(other | {"head.weight": torch.ones(1000, 7), "head.bias": torch.ones(7)}, runs / "head.safetensors")
    for cause, wrong in causes.items():
        failed = await fed.run(small_spec(**small, init=wrong))
        assert cause in (failed.reason or "")


def test_a_start_without_options_is_written_as_before() -> None:
    assert parse_spec({"init": {"file": "a"}}).model_dump(mode="json")["init"].keys() == {"run", "model", "file"}


@pytest.mark.parametrize(
    ("init", "field", "message"),
    [
        ({}, "init", "either run or file"),
        ({"run": "r1", "file": "a"}, "init", "either run or file"),
        ({"run": "latest"}, "init", "the id of a run"),
        ({"run": "../x"}, "init.run", "pattern"),
        ({"file": "/etc/passwd"}, "init", "without `..`"),
        ({"file": "a.safetensors", "model": "edge-1"}, "init", "a file has one model"),
        ({"path": "a"}, "init.path", "unknown field"),
    ],
)
def test_bad_starts_are_refused_by_field_and_cause(init: Any, field: str, message: str) -> None:
    with pytest.raises(BadInput) as found:
        parse_spec({"init": init})
    assert message in found.value.detail
    assert found.value.field == field
