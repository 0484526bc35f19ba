"""What cannot fit is refused with the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared import sizes
from shared.algorithms import load_algorithm
from shared.errors import BadInput
from shared.lab import Lab
from shared.spec import parse_spec
from shared.training.data import load

RESNET18 = 11_173_962


def test_single_updates_of_very_many_devices_are_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_ALGORITHMS", "tests.probes")
    spec = parse_spec({"num_devices": 100_000, "num_edges": 2, "model": "resnet18"})
    fedavg, held = load_algorithm("fedavg"), load_algorithm("probe_refuse")
    monkeypatch.setattr(sizes, "available_bytes", lambda: 16 * 10**9)
    sizes.check_memory(spec, fedavg, RESNET18)  # sums do not grow with the devices
    assert sizes.needed_bytes(spec, fedavg, RESNET18) == 8 * 4 * RESNET18
    with pytest.raises(BadInput, match=r"100000 devices, 2 edges .* 8939\.5 GB with probe_refuse, 16\.0 GB are free"):
        sizes.check_memory(spec, held, RESNET18)


def test_a_model_that_cannot_fit_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_: Lab) -> None:
        raise AssertionError("a model was made")

    monkeypatch.setattr(Lab, "_first_model", made)
    spec = parse_spec({"model": {"name": "resnet50", "projection": 65_536}, "num_devices": 2, "num_edges": 1})
    data = load("digits", data_dir=None, cache_dir=tmp_path)
    monkeypatch.setattr(sizes, "available_bytes", lambda: 10**9)
    with pytest.raises(BadInput, match=r"a model of 162\d{6} elements need at least 3\.9 GB with fedavg") as refused:
        Lab(spec.resolved(n_devices=2, n_edges=1), data)
    assert refused.value.field == "model.name"
    monkeypatch.setattr(sizes, "available_bytes", lambda: 10**11)
    assert Lab(spec.resolved(n_devices=2, n_edges=1), data).shapes["head.weight"].shape == (10, 65_536)


def test_what_users_send_singly_counts_for_each_user_and_not_for_its_devices() -> None:
    many = {"num_devices": 1000, "num_edges": 10, "client": "edge", "algorithm": "dtpfl"}
    spec = parse_spec(many)
    assert sizes.needed_bytes(spec, load_algorithm("dtpfl"), 100) == 8 * 100 * (10 + 2 + 10)
    refusing = spec.but(round_deadline_s=1.0)
    assert sizes.needed_bytes(refusing, load_algorithm("dtpfl"), 100) == 8 * 100 * (10 + 2 + 1000)


def test_more_processes_than_fit_are_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "available_bytes", lambda: 10**9)
    sizes.check_processes(6)
    with pytest.raises(BadInput, match=r"1000 processes need at least 150\.0 GB, 1\.0 GB are free"):
        sizes.check_processes(1000)


def test_where_the_system_tells_no_memory_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "available_bytes", lambda: None)
    sizes.check_processes(10**9)


def test_the_free_memory_of_this_machine_is_known() -> None:
    there = sizes.available_bytes()
    assert there is not None
    assert 10**7 < there < 10**14
