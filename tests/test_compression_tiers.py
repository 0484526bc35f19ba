"""Compression through the tiers: the bytes sent and the models trained from; neither depends on the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.core.tensor_records import TensorMap
from shared.wire.compression import Fp16, Ternary, TopK
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, ended, federation, four, ran

AROUND = 4_000
"""Bounds the bytes of a body beside its model, mostly the spec."""
LAYERS = {"features.1.weight": 64 * 64, "features.1.bias": 64, "head.weight": 64 * 10, "head.bias": 10}
N = sum(LAYERS.values())


def spec_of(**more: Any) -> dict[str, Any]:
    """Four devices at two edges, on 240 digits."""
    return {**four(), "partition": {"name": "dirichlet", "alpha": 1.0}, "num_rounds": 2, **more}


def small_topk(fraction: float = 0.1, memory: bool = True) -> dict[str, Any]:
    return {"up": {"name": "topk", "fraction": fraction, "memory": memory}}


async def test_updates_and_broadcasts_equal_those_of_plain_code() -> None:
    """FedAvg without tiers: each seat trains from the decoded model, and its update is coded before any sum."""
    done = await ran(spec_of(compression={"up": "ternary", "down": "fp16"}), agent_devices=(3, 1))
    model, sizes = done.experiment.initial, [len(seat.train) for seat in done.experiment.population.seats]
    for round_no in (1, 2):
        start = {name: Fp16().encode(tensor).decoded() for name, tensor in model.items()}
        updates = []
        for seat in range(4):
            trained = flat.local(done.experiment, seat, round_no, start)
            updates.append({name: Ternary().encode(trained[name] - start[name]).decoded() for name in model})
        mean = flat.exact_mean(updates, sizes, sum(sizes))
        model = {name: tensor + mean[name] for name, tensor in model.items()}
    assert flat.same_bits(done.model, model)


async def test_the_compression_error_is_added_to_the_next_update() -> None:
    """Top-k with error feedback, without tiers; without the error memory the model differs."""
    done = await ran(spec_of(compression=small_topk()), agent_devices=(3, 1))
    plain, forgetful = _topk(done, memory=True), _topk(done, memory=False)
    assert flat.same_bits(done.model, plain)
    assert not flat.same_bits(plain, forgetful)
    other = await ran(spec_of(compression=small_topk(memory=False)), agent_devices=(3, 1))
    assert flat.same_bits(other.model, forgetful)


def _topk(done: Ended, *, memory: bool) -> TensorMap:
    model, sizes = done.experiment.initial, [len(seat.train) for seat in done.experiment.population.seats]
    left: list[TensorMap] = [{name: torch.zeros_like(tensor) for name, tensor in model.items()} for _ in sizes]
    for round_no in (1, 2):
        updates = []
        for seat in range(4):
            trained = flat.local(done.experiment, seat, round_no, model)
            whole = {name: trained[name] - model[name] + left[seat][name] for name in model}
            updates.append({name: TopK(fraction=0.1).encode(tensor).decoded() for name, tensor in whole.items()})
            if memory:
                left[seat] = {name: whole[name] - updates[-1][name] for name in model}
        mean = flat.exact_mean(updates, sizes, sum(sizes))
        model = {name: tensor + mean[name] for name, tensor in model.items()}
    return model


@pytest.mark.matrix(2)
@pytest.mark.parametrize("compression", [{"up": "int8", "down": "ternary"}, small_topk(0.4)])
async def test_bits_and_link_bytes_do_not_depend_on_the_layout(compression: dict[str, Any]) -> None:
    """An agent sends the exact sum or single compressed updates, if smaller; a seat is charged for its own."""
    spec = spec_of(compression=compression)
    one = await ran(spec, agent_devices=(1, 3), order=(1, 0))
    apart = await ran(spec, agent_devices=(1, 1, 1, 1), order=(3, 1, 2, 0))
    assert flat.same_bits(apart.model, one.model)
    assert apart.links() == one.links()
    assert one.info.accuracy is not None
    for detail in apart.rounds:  # with one device per agent the charged bytes are those on the sockets
        assert detail.socket_bytes == detail.bytes_up + detail.bytes_down


UP = {"fp16": 2 * N, "int8": N + 4 * 4, "ternary": sum(-(-n // 4) + 4 for n in LAYERS.values())}


TERNARY_WEIGHTS = sum(-(-n // 4) + 4 if "weight" in name else 4 * n for name, n in LAYERS.items())
TENTH = sum(8 * -(-n // 10) for n in LAYERS.values())


@pytest.mark.parametrize(
    ("short", "up", "down"),
    [
        ({"compression": {"up": "fp16", "down": "int8"}}, UP["fp16"], UP["int8"]),
        ({"compression": {"up": "ternary", "down": "ternary"}}, UP["ternary"], UP["ternary"]),
        ({"compression": small_topk(0.1)}, TENTH, 4 * N),
        ({"algorithm": "t_fedavg"}, TERNARY_WEIGHTS, TERNARY_WEIGHTS),
    ],
)
async def test_links_carry_as_many_bytes_as_the_documentation_says(short: dict[str, Any], up: int, down: int) -> None:
    """Compared with FedAvg's bodies, which also differ in the names of parts and in the spec."""
    plain, coded = [await ran(spec_of(num_rounds=1, **more), agent_devices=(4,)) for more in ({}, short)]
    for row, other in zip(coded.rounds[0].seats, plain.rounds[0].seats, strict=True):
        assert other.up_bytes - row.up_bytes == pytest.approx(4 * N - up, abs=400)
        assert other.down_bytes - row.down_bytes == pytest.approx(4 * N - down, abs=400)
    if "compression" in short:  # of devices: cloud and edges exchange uncompressed sums
        assert coded.rounds[0].edges[0].down_bytes > 4 * N


@pytest.mark.whole
async def test_null_is_fedavg_bit_for_bit() -> None:
    done = [
        await ran(spec_of(**more), agent_devices=(3, 1)) for more in ({}, {"compression": {"up": None, "down": None}})
    ]
    assert done[0].info.model_sha256 == done[1].info.model_sha256
    assert done[0].links() == done[1].links()
    assert flat.same_bits(done[0].model, flat.fedavg(done[0].experiment, 2))


@pytest.mark.whole
async def test_the_error_memory_survives_a_restart_of_its_agent(tmp_path: Path) -> None:
    whole = await ran(spec_of(compression=small_topk()), agent_devices=(3, 1))
    async with federation(tmp_path, agent_devices=(3, 1)) as fed:
        run_id = await fed.submit(spec_of(compression=small_topk(), num_rounds=1))
        await ended(fed, run_id)
        await fed.restart_node("agent-0")
        await fed.until(lambda: fed.n_agents() == 2)
        assert (await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 1})).status_code == 200
        done = await ended(fed, run_id)
    assert done.info.model_sha256 == whole.info.model_sha256


@pytest.mark.whole
async def test_held_updates_are_fetched_compressed() -> None:
    """With a deadline agents hold updates and report their sizes; a late one is kept for the next round."""
    more = {"round_deadline_s": 30.0, "late": "next_round", "devices": {"straggler_ratio": 0.25}}
    spec = spec_of(compression={"up": "ternary"}, **more)
    one, apart = await ran(spec, agent_devices=(4,)), await ran(spec, agent_devices=(1, 1, 1, 1))
    assert one.links() == apart.links()
    assert flat.same_bits(one.model, apart.model)
    assert all(row.up_bytes < UP["ternary"] + AROUND for detail in one.rounds for row in detail.seats)


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ["bofl", "scaffold"])
async def test_other_algorithms_can_be_compressed(algorithm: str) -> None:
    spec = spec_of(algorithm=algorithm)
    short = {**spec, "compression": {"up": "int8", "down": "fp16"}}
    plain, coded = await ran(spec, agent_devices=(4,)), await ran(short, agent_devices=(4,))
    again = await ran(short, agent_devices=(1, 3))
    assert flat.same_bits(coded.model, again.model)
    assert coded.links() == again.links()
    assert sum(d.device_bytes_up for d in coded.rounds) < 0.5 * sum(d.device_bytes_up for d in plain.rounds)
    assert coded.info.accuracy == pytest.approx(plain.info.accuracy, abs=0.15)


@pytest.mark.whole
async def test_the_edges_own_worker_trains_from_the_decoded_broadcast() -> None:
    spec = spec_of(client="edge", num_edges=2, schedule="equal", compression={"up": "int8", "down": "ternary"})
    one, apart = await ran(spec, agent_devices=(4,)), await ran(spec, agent_devices=(1, 1, 1, 1))
    assert flat.same_bits(one.model, apart.model)
    assert one.links() == apart.links()
