"""`edge_compression`: codecs between cloud and edges, both ways, with error feedback at the edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.core.errors import BadInput
from shared.core.tensor_records import TensorMap
from shared.federation.expected_times import ExpectedTimes
from shared.federation.hooks import EdgeHooks
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.wire.compression import Coded, Int8
from tests.federation import EDGE_PORT
from tests.security.test_false_claims import of_edge
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, ended, federation, four, ran, resolved, run
from tests.test_asynchronous_faults import LastAnswer
from tests.test_compression_tiers import TENTH, UP, N

Floats = npt.NDArray[np.float32]
Code = Callable[[Floats], Floats]
TOPK = {"up": {"name": "topk", "fraction": 0.1}}
FORGETFUL = {"up": {"name": "topk", "fraction": 0.1, "memory": False}}
BOTH = {"up": {"name": "topk", "fraction": 0.3}, "down": "int8"}


def spec_of(edge_compression: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Four devices at two edges, on 240 digits."""
    coded = {} if edge_compression is None else {"edge_compression": edge_compression}
    return {**four(), "partition": {"name": "dirichlet", "alpha": 1.0}, "num_rounds": 3, **coded, **more}


# ---- the reference in plain numpy


def whole(x: Floats) -> Floats:
    return x


def fp16(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def int8(x: Floats) -> Floats:
    step = np.float32(float(np.abs(x).max()) / 127)
    return np.asarray(np.clip(np.rint(x / step), -127, 127).astype(np.float32) * step)


def tenth(x: Floats) -> Floats:
    """A tenth of the elements, those of the largest magnitude; of equal ones the first."""
    flat_x, kept = x.reshape(-1), np.zeros(x.size, np.float32)
    largest = np.argsort(-np.abs(flat_x), kind="stable")[: math.ceil(x.size / 10)]
    kept[largest] = flat_x[largest]
    return kept.reshape(x.shape)


def coded(tensors: TensorMap, code: Code) -> TensorMap:
    return {name: torch.from_numpy(code(tensor.numpy())) for name, tensor in tensors.items()}


def plain(
    done: Ended,
    up: Code,
    down: Code,
    *,
    memory: bool = False,
    lost: tuple[int, int] | None = None,
    edge_rounds: int = 1,
) -> TensorMap:
    """Hierarchical FedAvg whose edges receive C(w) and send C(u + m); m <- u + m - C(u + m) where the answer counted.

    Args:
        lost: a round and an edge whose answer did not count.
    """
    sizes = [len(seat.train) for seat in done.experiment.population.seats]
    model = done.experiment.initial
    left: list[TensorMap] = [{name: torch.zeros_like(tensor) for name, tensor in model.items()} for _ in range(2)]
    for round_no in range(1, done.experiment.spec.num_rounds + 1):
        sent, weights = [], []
        for edge in (0, 1):
            seats = [seat for seat in range(4) if seat % 2 == edge]
            received = at_edge = coded(model, down)
            for edge_round in range(edge_rounds):
                trained = [flat.local(done.experiment, seat, round_no, at_edge, edge_round) for seat in seats]
                deltas = [{name: after[name] - at_edge[name] for name in at_edge} for after in trained]
                mean = flat.exact_mean(deltas, [sizes[seat] for seat in seats], sum(sizes))
                at_edge = {name: at_edge[name] + mean[name] for name in mean}
            moved = mean if edge_rounds == 1 else {name: at_edge[name] - received[name] for name in received}
            if (round_no, edge) == lost:
                continue
            due = {name: moved[name] + left[edge][name] for name in moved} if memory else moved
            sent.append(coded(due, up))
            weights.append(sum(sizes[seat] for seat in seats))
            left[edge] = {name: due[name] - sent[-1][name] for name in due}
        mean = flat.exact_mean(sent, weights, sum(sizes))
        model = {name: model[name] + mean[name] for name in model}
    return model


@pytest.mark.matrix(5)
@pytest.mark.parametrize(
    ("edge_compression", "up", "down", "memory", "edge_rounds"),
    [
        (TOPK, tenth, whole, True, 1),
        (FORGETFUL, tenth, whole, False, 1),
        (TOPK, tenth, whole, True, 2),
        ({"up": "int8", "down": "fp16"}, int8, fp16, False, 1),
        ({"down": "int8"}, whole, int8, False, 2),
    ],
    ids=["error feedback", "without", "edge models", "both ways", "down"],
)
async def test_three_rounds_are_those_of_the_formula(
    edge_compression: dict[str, Any], up: Code, down: Code, memory: bool, edge_rounds: int
) -> None:
    """Bit for bit, so weights, residuals and what edges train from are right."""
    done = await ran(spec_of(edge_compression, edge_rounds=edge_rounds), agent_devices=(3, 1))
    expected = plain(done, up, down, memory=memory, edge_rounds=edge_rounds)
    assert flat.same_bits(done.model, expected)
    uncoded = plain(done, whole, whole, edge_rounds=edge_rounds)
    assert flat.distance(done.model, uncoded) > 1e-4
    if memory:
        assert flat.distance(expected, plain(done, up, down, edge_rounds=edge_rounds)) > 1e-4


@pytest.mark.whole
async def test_no_codec_is_the_run_as_it_was() -> None:
    """Bits, bytes and digest of the spec."""
    without, named = [await ran(spec_of(codecs), agent_devices=(3, 1)) for codecs in (None, {"up": None, "down": None})]
    assert named.info.spec.digest() == without.info.spec.digest()
    assert named.info.model_sha256 == without.info.model_sha256
    assert flat.same_bits(named.model, flat.fedavg(named.experiment, 3))
    assert [detail.edges for detail in named.rounds] == [detail.edges for detail in without.rounds]


# ---- bytes and time


@pytest.mark.matrix(5)
@pytest.mark.parametrize(
    ("edge_compression", "up", "down"),
    [
        ({"up": "fp16", "down": "int8"}, UP["fp16"], UP["int8"]),
        ({"up": "int8"}, UP["int8"], 4 * N),
        ({"up": "ternary", "down": "ternary"}, UP["ternary"], UP["ternary"]),
        (TOPK, TENTH, 4 * N),
        ({"down": "fp16"}, 8 * N, 2 * N),
    ],
    ids=str,
)
async def test_the_link_of_an_edge_carries_what_the_documentation_says(
    edge_compression: dict[str, Any], up: int, down: int
) -> None:
    """Compared with the bodies of exact sums and whole models, which also differ in the names of parts and the spec."""
    slow = {"edge_link": {"up_bps": 1e5, "down_bps": 1e5, "latency_s": 0, "jitter_s": 0}, "num_rounds": 1}
    without, short = [await ran(spec_of(codecs, **slow), agent_devices=(1,) * 4) for codecs in (None, edge_compression)]
    (before,), (after,) = without.rounds, short.rounds
    for row, other in zip(after.edges, before.edges, strict=True):
        assert other.up_bytes - row.up_bytes == pytest.approx(8 * N - up, abs=700)
        assert other.down_bytes - row.down_bytes == pytest.approx(4 * N - down, abs=700)
        saved = (other.up_bytes - row.up_bytes) + (other.down_bytes - row.down_bytes)
        assert other.simulated_s - row.simulated_s == pytest.approx(8 * saved / 1e5, abs=0.02)
    assert after.socket_bytes == after.bytes_up + after.bytes_down  # with one device per agent
    assert after.device_bytes_up == pytest.approx(before.device_bytes_up, abs=100)  # a loss may have other digits
    times = [ExpectedTimes(done.experiment, done.experiment.spec) for done in (without, short)]
    assert times[1].edge_use.up_bytes == up
    assert times[1].edge_use.down_bytes == down
    expected, found = times[0].last[0] - times[1].last[0], before.simulated_s - after.simulated_s
    assert expected == pytest.approx(found, rel=0.1)


def test_the_plan_says_what_an_edge_moves_and_that_a_quick_link_hides_it() -> None:
    quick = {"edge_link": {"up_bps": 1e12, "down_bps": 1e12}}
    lines = {}
    for name, more in {"slow": {"edge_link": {"up_bps": 1e4}}, "quick": quick}.items():
        experiment = resolved(**spec_of({"up": "int8", "down": "fp16"}, **more))
        lines[name] = list(ExpectedTimes(experiment, experiment.spec).lines())
    moved = "in a round an edge moves 9.62 kB down and 4.83 kB up of parameters; uncompressed it would be 19.2 kB down"
    assert all(any(moved in line for line in found) for found in lines.values())
    said = [line for line in lines["quick"] if line.startswith("without effect: edge_compression changes a round by")]
    assert len(said) == 1
    assert said[0].endswith("; bytes are fewer")
    assert not any("without effect: edge_compression" in line for line in lines["slow"])


# ---- layouts and other methods


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"sync": {"devices": {"mode": "asynchronous", "buffer": 2}, "edges": {"mode": "asynchronous"}}},
        {"algorithm": "scaffold", "edge_rounds": [1, 2], "compression": {"up": "int8", "down": "ternary"}},
        {"algorithm": "bofl"},
        {"collected": "travels", "arrival_rate": 0.4, "schedule": "equal"},
        {"algorithm": "t_fedavg", "edge_compression": {"up": "int8", "down": "int8"}},
        {"algorithm": "fednova", "edge_rounds": 2},
        {"algorithm": "dtpfl", "client": "edge", "schedule": "equal"},
        {"round_deadline_s": 30.0, "late": "next_round", "devices": {"straggler_ratio": 0.25}},
        {"vectorised": {"width": 2}, "weights": "uniform"},
        {"sync": {"edges": {"mode": "asynchronous", "staleness": {"name": "polynomial", "a": 0.5}}}},
    ],
    ids=str,
)
async def test_bits_and_bytes_do_not_depend_on_the_layout(more: dict[str, Any]) -> None:
    spec = spec_of(**{"edge_compression": BOTH, **more})
    one = await ran(spec, agent_devices=(1, 3), order=(1, 0))
    apart = await ran(spec, agent_devices=(1, 1, 1, 1), order=(3, 1, 2, 0))
    assert one.info.model_sha256 == apart.info.model_sha256
    assert one.links() == apart.links()
    assert [detail.edges for detail in one.rounds] == [detail.edges for detail in apart.rounds]
    without = await ran({**spec, "edge_compression": {}}, agent_devices=(1, 3))
    sums = [sum(detail.edge_bytes_up for detail in done.rounds) for done in (one, without)]
    assert sums[0] < 0.8 * sums[1]
    assert not any(detail.failures for detail in one.rounds)


# ---- faults


@pytest.mark.whole
async def test_an_edge_that_has_stored_a_round_and_must_repeat_it_adds_its_error_once(tmp_path: Path) -> None:
    """Its answer of round 2 is lost, and so is what it had in memory."""
    expected = await ran(spec_of(TOPK), agent_devices=(3, 1))
    async with federation(tmp_path, agent_devices=(3, 1)) as fed:
        last = LastAnswer(fed, "/rounds", EDGE_PORT, 2)
        run_id = await fed.submit(spec_of(TOPK))
        await last.done.wait()
        await fed.restart_node("edge-0")
        last.restarted.set()
        found = await ended(fed, run_id)
    assert found.info.model_sha256 == expected.info.model_sha256


@pytest.mark.whole
async def test_the_error_survives_a_restart_of_all_tiers(tmp_path: Path) -> None:
    expected = await ran(spec_of(TOPK), agent_devices=(3, 1))
    async with federation(tmp_path, agent_devices=(3, 1)) as fed:
        run_id = await fed.start_and_pause(spec_of(TOPK), 1)
        await fed.restart(lambda: None)
        await fed.control(run_id, "resume")
        found = await ended(fed, run_id)
    assert found.info.model_sha256 == expected.info.model_sha256


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        (1, torch.tensor(math.nan), "the scale is nan"),
        (0, torch.full((1,), -128, dtype=torch.int8), "steps beyond 127"),
    ],
)
async def test_an_edge_that_sends_invalid_parts_loses_its_contribution_alone(
    tmp_path: Path, part: int, value: torch.Tensor, says: str
) -> None:
    def forge(answer: Any) -> Any:
        name = "head.bias"
        parts = list(answer.update.delta[name].parts)
        parts[part] = value if part else torch.cat([value, parts[0][1:]])
        spoilt = {**answer.update.delta, name: Coded(Int8, (10,), tuple(parts))}
        return answer.model_copy(update={"update": answer.update.model_copy(update={"delta": spoilt})})

    done = await run(tmp_path, spec_of({"up": "int8"}), tamper=of_edge(forge), agent_devices=(3, 1))
    (failure,) = done.rounds[0].failures
    assert (failure.edge, failure.reason) == ("edge-1", "wire")
    assert says in failure.detail
    assert not any(detail.failures for detail in done.rounds[1:])
    assert flat.same_bits(done.model, plain(done, int8, whole, lost=(1, 0)))


@pytest.mark.whole
async def test_an_update_that_was_refused_is_not_in_the_error_that_its_edge_keeps(tmp_path: Path) -> None:
    """The edge goes on from the state of its last round that counted."""

    def forge(answer: Any) -> Any:
        return answer if answer.base.round_no != 2 else answer.model_copy(update={"n_updates": 3})

    tamper = of_edge(forge, times=2)
    done = await run(tmp_path, spec_of(TOPK), tamper=tamper, agent_devices=(3, 1))
    assert [bool(detail.failures) for detail in done.rounds] == [False, True, False]
    assert flat.same_bits(done.model, plain(done, tenth, whole, memory=True, lost=(2, 0)))


@pytest.mark.whole
async def test_an_edge_without_answers_keeps_its_error(tmp_path: Path) -> None:
    losses = [{"round_no": 2, "seats": [1, 3]}]
    done = await run(tmp_path, spec_of(TOPK, losses=losses), agent_devices=(3, 1))
    assert flat.same_bits(done.model, plain(done, tenth, whole, memory=True, lost=(2, 1)))


# ---- what is refused


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"edge_compression": "int8"}, r"edge_compression: say which way: \{up: int8\}"),
        ({"edge_compression": {"down": "topk"}}, "edge_compression: down: topk is for updates"),
        ({"edge_compression": {"up": "int4"}}, "edge_compression.up: unknown name 'int4'"),
        ({"edge_compression": TOPK, "algorithm": "t_fedavg"}, "edge_compression.up: t_fedavg sends up models"),
        ({"edge_compression": TOPK, "algorithm": "fedasync"}, "edge_compression.up: fedasync sends up models, not"),
        (
            {"edge_compression": {"up": "int8"}, "algorithm": "es_afl"},
            "edge_compression.up: es_afl sends up no tensors",
        ),
        (
            {
                "edge_compression": {"up": "int8"},
                "sync": {"devices": {"mode": "asynchronous", "staleness": "polynomial"}},
            },
            "edge_compression.up sends a mean, which does not tell by how much",
        ),
    ],
    ids=str,
)
def test_what_is_not_defined_is_refused_by_name(more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        parse_spec(spec_of(**more))
    assert str(refused.value.field).startswith("edge_compression")


def test_edges_that_send_exact_sums_are_refused_by_the_fields_of_the_update() -> None:
    """An algorithm whose updates have groups, and whose edges form models with several edge rounds only."""
    sums = replace(load_algorithm("dtpfl"), edge=EdgeHooks(), needs={})
    fields: dict[str, Any] = {"client": "edge", "schedule": "equal"}
    with pytest.raises(
        BadInput, match=r"edge_compression.up: dtpfl: edges send exact sums, since grouped of its updates"
    ):
        sums.check_spec(parse_spec(spec_of(BOTH, **fields)))
    sums.check_spec(parse_spec(spec_of(BOTH, **fields, edge_rounds=2)))
