"""`device: cuda` is refused with its cause if CUDA is missing; else FedAvg on it is compared with the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.core.errors import BadInput
from shared.results.manifest import Manifest
from shared.training import compute_device
from shared.training.compute_device import ComputeDevice, compute_device_of
from tests.federation import small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import federation, run

MISSING = "torch 0.0 finds no GPU"
TOLD = f"device: cuda: {MISSING}"
ON_GPU: Any = pytest.mark.skipif(
    compute_device.cuda_missing() is not None, reason=f"no CUDA: {compute_device.cuda_missing()}"
)


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides CUDA from this process."""
    monkeypatch.setattr(compute_device, "cuda_missing", lambda: MISSING)


def accept_any_device(name: str) -> ComputeDevice:
    """Makes this process accept every device that a spec requests."""
    return ComputeDevice(torch.device("cpu"))


def test_missing_cuda_is_an_error_that_names_field_and_cause(no_cuda: None) -> None:
    with pytest.raises(BadInput, match=TOLD) as refused:
        compute_device_of("cuda")
    assert (refused.value.field, refused.value.status) == ("device", 422)
    assert compute_device_of("cpu").is_cpu


def test_the_cause_distinguishes_a_build_and_a_machine_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is a build without CUDA" in (compute_device.cuda_missing() or "")
    monkeypatch.setattr(torch.version, "cuda", "99.9")
    assert "(CUDA 99.9) finds no GPU" in (compute_device.cuda_missing() or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute_device.cuda_missing() is None


def test_a_run_on_the_cpu_does_not_inherit_the_kernels_of_one_on_a_gpu() -> None:
    try:
        torch.use_deterministic_algorithms(True)
        compute_device_of("cpu").make_repeatable()
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


async def test_a_cloud_without_cuda_refuses_the_run(tmp_path: Path, no_cuda: None) -> None:
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        answer = await fed.client.post("/runs", json={"spec": small_spec(device="cuda")})
        problem = answer.json()
        assert (await fed.client.get("/runs")).json()["runs"] == []
    assert answer.status_code == 422
    assert (problem["code"], problem["field"], problem["detail"]) == ("bad_input", "device", TOLD)


async def test_a_run_resumed_without_cuda_fails_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cuda: None
) -> None:
    monkeypatch.setattr("cloud_server.runs.manager.compute_device_of", accept_any_device)
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        info = await fed.run(small_spec(device="cuda"))
    assert (info.status, info.rounds, info.reason) == ("failed", 0, TOLD)


@pytest.mark.parametrize("client", ["device", "edge"])
async def test_without_cuda_at_the_agents_the_first_round_fails_with_the_cause(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cuda: None
) -> None:
    """The workers of edges that are clients fail with the same cause."""
    for module in ("manager", "executor"):
        monkeypatch.setattr(f"cloud_server.runs.{module}.compute_device_of", accept_any_device)
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        info = await fed.run(small_spec(device="cuda", client=client))
    assert (info.status, info.rounds) == ("failed", 0)
    assert TOLD in (info.reason or "")


@ON_GPU
async def test_fedavg_on_a_gpu_is_repeatable_and_close_to_the_cpus(tmp_path: Path) -> None:
    here = await run(tmp_path, small_spec(lr=0.1), agent_devices=(2, 4))
    there = await run(tmp_path, small_spec(lr=0.1, device="cuda"), agent_devices=(2, 4))
    again = await run(tmp_path, small_spec(lr=0.1, device="cuda"), agent_devices=(6,))
    back = await run(tmp_path, small_spec(lr=0.1), agent_devices=(6,))
    assert again.info.model_sha256 == there.info.model_sha256
    assert flat.distance(there.model, there.experiment.initial) > 0
    assert flat.distance(there.model, here.model) < 1e-3
    assert back.info.model_sha256 == here.info.model_sha256
    assert torch.cuda.get_device_name() in (Manifest.of(there.info).gpu or "")
    assert Manifest.of(here.info).gpu is None
