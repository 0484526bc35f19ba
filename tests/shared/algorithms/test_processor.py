"""Every algorithm's hooks with tensors on a fake GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.federation.hooks import DeviceHooks, Update
from shared.federation.registry import load_algorithm
from shared.training.compute_device import ComputeDevice
from tests.federation import small_spec
from tests.pretended import PLACE, Mixed, PretendedGpu, all_on_cpu, pretending
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import federation, ran, run, tried
from tests.shared.algorithms.test_contract import PRODUCT

VIEWS = ["resolution", "crop", "rotation", "flip"]
OTHERWISE: dict[str, dict[str, Any]] = {
    "bofl, updates compared": {"algorithm": {"name": "bofl", "params": {"compare": "update", "optimiser": "sgd"}}},
    "dtpfl, clustered": {"algorithm": {"name": "dtpfl", "params": {"pretrain_rounds": 1}}, "client": "edge"},
    "fedmix, naive": {"algorithm": {"name": "fedmix", "params": {"mix": "naive", "mash": 5}}},
    "fedprox, local fedser": {"algorithm": {"name": "fedprox", "local": "fedser"}},
    "fedser, all views": {"algorithm": {"name": "fedser", "params": {"transforms": VIEWS, "bn": "running"}}},
    "lafl_cpn, raw": {"algorithm": {"name": "lafl_cpn", "params": {"stats": "raw", "test_stats": "own"}}},
    "per_fedavg, hessian": {"algorithm": {"name": "per_fedavg", "params": {"hessian": "hessian_free"}}},
    "t_fedavg, scaled": {"algorithm": {"name": "t_fedavg", "params": {"gradient": "scaled", "download": "full"}}},
    "scaffold, option I": {"algorithm": {"name": "scaffold", "params": {"option": "I"}}},
    "augmented on loading": {"algorithm": "lafl_cpn", "augment": "randaugment"},
    "augmented once": {"algorithm": "fedavg", "augment": {"name": "randaugment", "when": "once"}},
    "edges train and test": {"algorithm": "fedper", "client": "edge", "schedule": "equal", "test_on": ["union"]},
    "sub-rounds, momentum": {"algorithm": "feddc", "edge_rounds": 2, "momentum": 0.9, "weight_decay": 0.01},
}
"""Parameters that select branches other than the defaults."""
CASES = {name: {"algorithm": name, **load_algorithm(name).needs} for name in PRODUCT} | OTHERWISE
FIRST = ("lafl_cpn, raw", "per_fedavg, hessian", "scaffold, option I", "t_fedavg, scaled")
"""Those with the most kernels of their own."""


def spec_of(case: str) -> dict[str, Any]:
    """Returns a spec of two rounds on a model with a convolution and batch-norm; the second continues from states."""
    return {
        "data": {"name": "digits", "n_train": 48, "n_test": 20},
        "model": "conv_bn",
        "batch_size": 8,
        "num_devices": 3,
        "num_edges": 2,
        "num_rounds": 2,
        "lr": 0.1,
        **CASES[case],
    }


@pytest.mark.matrix(len(FIRST))
@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: case not in FIRST))
def test_hooks_mix_no_torch_devices_and_visits_leave_no_tensor_on_the_gpu(case: str) -> None:
    """The fake GPU uses the CPU's kernels, so the bits are equal too: tensors are copied without changes."""
    here = tried(**spec_of(case))
    with pretending() as left, PretendedGpu():
        there = tried(**spec_of(case), device="cuda")
    assert left == []
    assert flat.same_bits(there.model, here.model)


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("way", ["edges train and test", "sub-rounds, momentum", "lafl_cpn, raw"])
async def test_a_run_on_the_gpu_has_the_records_of_one_on_the_cpu(way: str, tmp_path: Path) -> None:
    """Except for the sizes of orders, since their specs differ."""
    spec = spec_of(way)
    here = await ran(spec, agent_devices=(3,))
    with pretending() as left:
        there = await run(tmp_path, {**spec, "device": "cuda"}, agent_devices=(3,))
    assert left == []
    assert [detail.failures for detail in there.rounds] == [detail.failures for detail in here.rounds]
    assert there.info.model_sha256 == here.info.model_sha256
    for before, after in zip(here.rounds, there.rounds, strict=True):
        assert after.evaluation == before.evaluation
        assert [row.figures for row in after.seats] == [row.figures for row in before.seats]
        assert [row.received_accuracy for row in after.seats] == [row.received_accuracy for row in before.seats]


# ---- the checks can fail


def test_the_pretended_gpu_accepts_exactly_the_mixes_that_torch_accepts() -> None:
    with PretendedGpu():
        there, positions = torch.arange(4.0).to(PLACE), torch.tensor([3, 1])
        assert (torch.tensor(2.0) - there).tolist() == [2, 1, 0, -1]
        assert there[positions].tolist() == [3, 1]
        assert torch.zeros(4).copy_(there).tolist() == [0, 1, 2, 3]
        assert (positions << 1).tolist() == [6, 2]
        for mixed in (
            lambda: there + torch.ones(4),
            lambda: torch.zeros(()).add_(there.sum()),
            lambda: torch.stack([there.sum(), torch.tensor(1.0)]),
            lambda: there.index_select(0, positions),
            lambda: torch._foreach_add_([there], [torch.ones(4)]),
        ):
            with pytest.raises(Mixed):
                mixed()
        with pytest.raises(RuntimeError, match=r"numpy\(\) is not supported"):
            there.numpy()
        assert not all_on_cpu(Update(delta={"w": there}))
        assert all_on_cpu(Update(delta={"w": there.cpu()}))


async def test_a_hook_that_mixes_torch_devices_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: Any, ctx: Any, state: Any, message: Any, owner: Any) -> Any:
        shades = torch.ones(1, 1, 8, 8)
        return lambda x: x * shades

    monkeypatch.setattr(DeviceHooks, "prepare", prepare)
    with pretending():
        async with federation(tmp_path, agent_devices=(6,)) as fed:
            info = await fed.run(small_spec(device="cuda"))
    assert info.status == "failed"
    assert "Mixed: mul of tensors on two devices" in (info.reason or "")


async def test_a_tensor_left_on_the_gpu_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten copy shows in the state, which is encoded, and in the update, which the agent sums on the CPU."""
    monkeypatch.setattr(ComputeDevice, "to_cpu", lambda self, value: value)
    with pretending() as left:
        async with federation(tmp_path, agent_devices=(6,)) as fed:
            info = await fed.run(small_spec(algorithm="moon", device="cuda"))
    assert "Own" in left
    assert "internal (Mixed in POST /visits" in (info.reason or "")
