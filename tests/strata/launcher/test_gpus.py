"""Which GPU an agent uses, where several share those of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import BadInput
from strata.launcher.gpus import agents_on_gpus, shared_gpus, visible_gpus
from tests.strata.slurm.made import command


@pytest.mark.parametrize(
    ("said", "found"),
    [("0,1", ["0", "1"]), ("GPU-4f, MIG-1", ["GPU-4f", "MIG-1"]), ("", []), ("-1", [])],
)
def test_the_variable_of_the_driver_decides(said: str, found: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": said}) == found


def test_without_it_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert visible_gpus({}) == []
    command(tmp_path / "bin", "nvidia-smi", "echo 0; echo 1")
    assert visible_gpus({}) == ["0", "1"]


def test_neighbouring_agents_share_a_gpu_and_more_agents_begin_anew_with_the_first() -> None:
    found = shared_gpus({"CUDA_VISIBLE_DEVICES": "3,7"}, 2)
    assert [found(place)["CUDA_VISIBLE_DEVICES"] for place in range(6)] == ["3", "3", "7", "7", "3", "3"]


def test_unshared_gpus_are_left_as_they_are() -> None:
    assert shared_gpus({"CUDA_VISIBLE_DEVICES": "3"}, 0)(0) == {}


def test_as_many_agents_are_started_as_gpus_take_and_devices_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert [agents_on_gpus(2, devices) for devices in (3, 10)] == [3, 4]
    assert agents_on_gpus(0, 10) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert agents_on_gpus(2, 10) is None


def test_without_a_gpu_there_is_none_to_share() -> None:
    with pytest.raises(BadInput, match="agents_per_gpu 1: no GPU is visible here"):
        shared_gpus({"CUDA_VISIBLE_DEVICES": ""}, 1)
