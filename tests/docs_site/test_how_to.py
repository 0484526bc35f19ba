"""The files shown on the how-to pages run unchanged."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shared.federation.registry import load_algorithm
from shared.training.data import dataset, sources
from shared.training.data.sources import DatasetSource
from shared.training.models import zoo
from shared.training.models.base import Classifier, Shape
from tests.shared.algorithms import test_contract as contract
from tests.shared.algorithms.layouts import run

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def blocks(page: str) -> list[str]:
    """Returns the Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", (HOW_TO / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


# ---- an algorithm


@pytest.fixture
def fedavgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's algorithm, written to the path that the page names."""
    (package := tmp_path / "mine" / "myalgs").mkdir(parents=True)
    (package / "fedavgm.py").write_text(blocks("own-algorithm.md")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("STRATA_ALGORITHMS", "myalgs")
    importlib.invalidate_caches()
    yield "fedavgm"
    for name in ("myalgs", "myalgs.fedavgm"):
        monkeypatch.delitem(sys.modules, name, raising=False)


async def test_the_shown_algorithm_keeps_the_contract(fedavgm: str, tmp_path: Path) -> None:
    contract.test_algorithm_is_found_by_its_name_and_frozen(fedavgm)
    contract.test_hooks_keep_no_state(fedavgm)
    contract.test_every_field_of_an_update_has_an_aggregation_rule(fedavgm)
    contract.test_parameters_have_a_schema_and_defaults(fedavgm)
    with contract.monitoring(load_algorithm(fedavgm)) as monitor:
        monitored = await run(tmp_path, contract.spec_of(fedavgm), agent_devices=(1,) * 4), monitor
    await contract.test_hooks_are_pure(fedavgm, monitored)
    await contract.test_messages_and_states_round_trip_the_wire(fedavgm, monitored)
    await contract.test_every_declared_type_is_used(fedavgm, monitored)


async def test_the_shown_algorithm_is_fedavg_without_momentum_and_follows_its_formula_with_it(
    fedavgm: str, tmp_path: Path
) -> None:
    def spec(rounds: int, **params: float) -> dict[str, Any]:
        return contract.spec_of(fedavgm, algorithm={"name": fedavgm, "params": params}, num_rounds=rounds)

    plain = await run(tmp_path, contract.spec_of("fedavg"))
    without = await run(tmp_path, spec(2, beta=0))
    assert without.info.model_sha256 == plain.info.model_sha256
    once, twice = await run(tmp_path, spec(1, beta=0.5)), await run(tmp_path, spec(2, beta=0.5))
    start = await run(tmp_path, spec(1, beta=0))
    assert once.info.model_sha256 == start.info.model_sha256  # the first round has no v yet
    for name, tensor in twice.model.items():
        moved = twice.state.velocity[name] - 0.5 * once.state.velocity[name]
        assert torch.equal(tensor, once.model[name] + twice.state.velocity[name])
        assert torch.allclose(moved, plain.model[name] - start.model[name], atol=1e-6)  # FedAvg's second delta
    assert twice.info.model_sha256 != plain.info.model_sha256


# ---- data


async def test_the_shown_data_set_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, line = blocks("own-data.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "own-data.md", "exec"), {})  # noqa: S102 - the page's own
    entry = eval(f"{{{line}}}", {"DatasetSource": DatasetSource})  # noqa: S307 - the page's own
    assert list(entry) == ["mine"]
    monkeypatch.setitem(sources.DATASETS, "mine", entry["mine"])
    found = dataset.load("mine", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert (found.n_classes, found.input_shape, len(found.train_y), len(found.test_y)) == (2, (1, 12, 12), 800, 200)
    spec = {"data": "mine", "num_devices": 4, "num_edges": 2, "num_rounds": 5, "lr": 0.1, "partition": "iid"}
    done = await run(tmp_path, spec, common={"data_dir": tmp_path})
    assert (done.info.accuracy or 0) > 0.9  # of two classes


# ---- a model


async def test_the_shown_model_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, line = blocks("own-model.md")
    names: dict[str, Any] = {"nn": nn, "Classifier": Classifier, "Shape": Shape}
    exec(compile(code, "own-model.md", "exec"), names)  # noqa: S102 - the page's own
    entry = eval(f"{{{line}}}", names)  # noqa: S307 - the page's own
    assert list(entry) == ["small_cnn"]
    monkeypatch.setitem(zoo.MODELS, "small_cnn", entry["small_cnn"])
    done = await run(tmp_path, contract.spec_of("fedavg", model="small_cnn"))
    assert sum(tensor.numel() for tensor in done.model.values()) == 8 * 9 + 8 + 72 * 10 + 10
    assert math.isfinite(done.info.loss or math.nan)
