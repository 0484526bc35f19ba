"""Runs that exceed the memory are refused with the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation import memory_check
from shared.federation.experiment import Experiment
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.runtime import memory
from shared.training.data.dataset import load
from tests.shared.algorithms.layouts import resolved

RESNET18 = 11_173_962


def test_single_updates_of_very_many_devices_are_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_PLUGINS", "tests.probes")
    spec = parse_spec({"num_devices": 100_000, "num_edges": 2, "model": "resnet18"})
    fedavg, held = load_algorithm("fedavg"), load_algorithm("probe_refuse")
    monkeypatch.setattr(memory_check, "available_bytes", lambda: 16 * 10**9)
    memory_check.check_memory(spec, fedavg, RESNET18)  # sums do not grow with the devices
    assert memory_check.needed_bytes(spec, fedavg, RESNET18) == 8 * 4 * RESNET18
    with pytest.raises(BadInput, match=r"100000 devices, 2 edges .* 8939\.5 GB with probe_refuse, 16\.0 GB are free"):
        memory_check.check_memory(spec, held, RESNET18)


def test_held_updates_count_by_selected_device() -> None:
    spec = parse_spec({"num_devices": 100_000, "num_edges": 2, "round_deadline_s": 1.0})
    few = spec.replace(select="random", fraction_train=0.001)
    needed = [memory_check.needed_bytes(one, load_algorithm("fedavg"), 100) for one in (spec, few)]
    assert needed == [8 * 100 * (4 + 100_000), 8 * 100 * (4 + 100)]


@pytest.mark.slow
def test_a_model_that_cannot_fit_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object) -> None:
        raise AssertionError("a model was made")

    monkeypatch.setattr(Experiment, "_first_model", made)
    spec = parse_spec({"model": {"name": "resnet50", "projection": 65_536}, "num_devices": 2, "num_edges": 1})
    data = load("digits", data_dir=None, cache_dir=tmp_path)
    monkeypatch.setattr(memory_check, "available_bytes", lambda: 10**9)
    with monkeypatch.context() as patched:
        patched.setattr("shared.training.models.least_batch", made)
        patched.setattr("shared.federation.experiment.training_flops", made)
        with pytest.raises(
            BadInput, match=r"a model of 162\d{6} elements need at least 3\.9 GB with fedavg"
        ) as refused:
            Experiment(spec.resolved(n_devices=2, n_edges=1), data)
    assert refused.value.field == "model.name"
    monkeypatch.setattr(memory_check, "available_bytes", lambda: 10**11)
    assert Experiment(spec.resolved(n_devices=2, n_edges=1), data).shapes["head.weight"].shape == (10, 65_536)


def test_single_updates_of_users_count_by_user_and_not_by_device() -> None:
    many = {"num_devices": 1000, "num_edges": 10, "client": "edge", "algorithm": "dtpfl"}
    spec = parse_spec(many)
    assert memory_check.needed_bytes(spec, load_algorithm("dtpfl"), 100) == 8 * 100 * (10 + 2 + 10)
    refusing = spec.replace(round_deadline_s=1.0)
    assert memory_check.needed_bytes(refusing, load_algorithm("dtpfl"), 100) == 8 * 100 * (10 + 2 + 1000)


def test_more_processes_than_fit_are_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    memory.check_processes(6)
    with pytest.raises(BadInput, match=r"1000 processes need at least 40\.00 GB, 1\.00 GB are free"):
        memory.check_processes(1000)
    memory.check_topology(8, 9)
    monkeypatch.setattr(memory, "memory_limit", lambda: 10**9)
    with pytest.raises(BadInput, match=r"19 .* 1\.01 GB, 1\.00 GB are free \(this container allows 1\.00 GB\); use"):
        memory.check_topology(8, 10)


def test_without_a_known_memory_size_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    memory.check_processes(10**9)


def test_values_collected_per_client_count_and_are_refused_by_their_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mash of 40 samples in pairs has 20 entries of 64 pixels and 10 classes, stored twice; by client it has 4."""

    def fedmix(mash: int | str) -> dict[str, Any]:
        algorithm = {"name": "fedmix", "params": {"mash": mash}}
        return {"algorithm": algorithm, "data": {"name": "digits", "n_train": 40, "n_test": 10}, "num_devices": 4}

    experiment = resolved(**fedmix("all"))
    model, entry = memory_check.needed_bytes(experiment.spec, experiment.algorithm, 4810), 4 * (64 + 10)
    monkeypatch.setattr(memory_check, "available_bytes", lambda: model + 2 * 20 * entry)
    resolved(**fedmix(2))
    monkeypatch.setattr(memory_check, "available_bytes", lambda: model + 2 * 20 * entry - 1)
    resolved(**fedmix("all"))
    with pytest.raises(BadInput, match=r"algorithm\.params\.mash: with 2 of fedmix a process needs at least") as found:
        resolved(**fedmix(2))
    assert found.value.field == "algorithm.params.mash"
