"""Features of the hooks that papers need, each tested by a small probe through three real tiers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from shared.core.tensor_records import TensorMap
from shared.core.tensors import digest
from shared.federation.messages import UploadOrder
from shared.wire import codec
from tests.federation import PassOn
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, agents_of, answer, ended, federation, ran, run

MODEL_BYTES = 4 * (64 * 64 + 64 + 64 * 10 + 10)
ONE, FOUR, SIX = (6,), (2, 2, 1, 1), (1,) * 6


def spec_of(algorithm: str, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    spec = {
        "algorithm": {"name": algorithm, "params": params or {}},
        "data": {"name": "digits", "n_train": 250, "n_test": 60},
        "num_devices": 6,
        "num_edges": 1,
        "num_rounds": 3,
        "lr": 0.1,
    }
    return {**spec, **more}


# ---- refused by report


def uploads_in(round_no: int) -> list[int]:
    return [seat for seat in range(6) if (seat + round_no) % 2 == 0]


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("params", "even", "odd"),
    [({}, [1, 1, 2], [1, 2, 2]), ({"keep": True}, [1, 2, 3], [1, 2, 3]), ({"keep": False}, [1, 1, 2], [1, 2, 2])],
)
async def test_refused_seat_keeps_or_reverts_its_state(
    params: dict[str, bool], even: list[int], odd: list[int]
) -> None:
    done = await ran(spec_of("probe_refuse", params), n_edges=1, agent_devices=FOUR)
    expected = {seat: odd if seat % 2 else even for seat in range(6)}
    assert done.figures("visits") == expected
    assert done.figures("reported") == expected
    assert not any(row.fresh_state for detail in done.rounds for row in detail.seats)


async def test_only_admitted_updates_are_sent_and_count() -> None:
    done = await ran(spec_of("probe_refuse"), n_edges=1, agent_devices=FOUR)
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 3, chosen=uploads_in))
    asked = [codec.decode(UploadOrder, body) for body in done.tape.of("/uploads")]
    for round_no in (1, 2, 3):
        seats = [seat for order in asked if order.stage.round_no == round_no for seat in order.seats]
        assert sorted(seats) == uploads_in(round_no)
    assert all(size < 4_000 for path, _, size in done.tape.orders if path == "/visits")
    for detail in done.rounds:
        for row in detail.seats:
            admitted = row.seat in uploads_in(detail.round_no)
            assert (row.outcome, row.label) == (("used", "even") if admitted else ("refused", "odd"))
            assert row.reason == (None if admitted else f"bid {row.seat + detail.round_no}")
            assert row.up_bytes > MODEL_BYTES if admitted else row.up_bytes < 2_000
        assert [edge.n_used for edge in detail.edges] == [3]


async def test_seat_refused_too_often_is_retired_with_a_reason() -> None:
    spec = spec_of("probe_refuse", {"max_refusals": 1}, num_edges=2)
    done = await ran(spec, n_edges=2, agent_devices=FOUR)
    first, second, third = done.rounds
    assert first.retired == dict.fromkeys((0, 2, 4), "refused 1 times")
    assert [row.seat for row in sorted(second.seats, key=lambda row: row.seat)] == [1, 3, 5]
    assert second.retired == dict.fromkeys((1, 3, 5), "refused 1 times")
    assert third.n_visits == 0
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 1, chosen=uploads_in))


@pytest.mark.whole
async def test_refused_seat_may_train_again_without_sending() -> None:
    """The state after the second visit is kept, though that visit sends nothing."""
    spec = spec_of("probe_refuse", {"adjust": True}, num_rounds=2)
    done = await ran(spec, n_edges=1, agent_devices=FOUR)
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 2, chosen=uploads_in))
    assert all(not detail.failures for detail in done.rounds)
    for detail in done.rounds:
        again = {row.seat: row for row in detail.seats if row.wave == 1}
        assert sorted(again) == [seat for seat in range(6) if seat not in uploads_in(detail.round_no)]
        assert {row.outcome for row in again.values()} == {"idle"}
        assert all(row.up_bytes < 2_000 for row in again.values())
    # reverted after the refusal, kept after the second visit: 1, then (refused) 1 again, then 2
    assert done.figures("visits") == {seat: [1, 2, 2] if seat % 2 else [1, 1, 2] for seat in range(6)}
    assert {codec.decode(UploadOrder, body).stage.wave for body in done.tape.of("/uploads")} == {0}


@pytest.mark.whole
async def test_edges_own_worker_is_refused_and_admitted_like_the_devices() -> None:
    """Seat 6 is the worker: admitted in round 2 only."""
    spec = spec_of("probe_refuse", client="edge", schedule="equal")
    done = await ran(spec, n_edges=1, agent_devices=FOUR)
    rows = [row for detail in done.rounds for row in detail.seats if row.seat == 6]
    assert [row.outcome for row in rows] == ["refused", "used", "refused"]
    assert [row.up_bytes + row.down_bytes for row in rows] == [0, 0, 0]
    assert done.figures("visits")[6] == [1, 1, 2]
    assert [detail.edges[0].n_used for detail in done.rounds] == [3, 4, 3]


@pytest.mark.whole
async def test_refusals_do_not_depend_on_agents_or_edges() -> None:
    few, many, apart = [
        await ran(spec_of("probe_refuse", num_edges=n_edges), n_edges=n_edges, agent_devices=agent_devices)
        for n_edges, agent_devices in ((1, FOUR), (1, SIX), (3, FOUR))
    ]
    assert few.info.model_sha256 == many.info.model_sha256 == apart.info.model_sha256
    assert few.links() == many.links()


# ---- a message for each seat, a value of each client


@pytest.mark.matrix
@pytest.mark.parametrize(("n_edges", "agent_devices"), [(1, ONE), (3, FOUR), (1, SIX)])
async def test_each_seat_gets_its_own_message_and_the_cloud_keeps_its_answer(
    n_edges: int, agent_devices: tuple[int, ...]
) -> None:
    done = await ran(spec_of("probe_seat", num_edges=n_edges), n_edges=n_edges, agent_devices=agent_devices)
    assert done.figures("factor") == {seat: [seat + 1, 2 * (seat + 1), 4 * (seat + 1)] for seat in range(6)}
    assert done.state.factors == {f"device-{seat}": 8 * (seat + 1) for seat in range(6)}
    sizes = np.array([len(seat.train) for seat in done.experiment.population.seats])
    means = [np.float32((sizes * np.arange(1, 7) * 2**round_no / 64).sum() / 250) for round_no in range(3)]
    received = done.experiment.initial["head.bias"].numpy() + means[0] + means[1]
    for name, start in done.experiment.initial.items():
        assert np.array_equal(done.model[name].numpy(), start.numpy() + means[0] + means[1] + means[2])
    for seat in range(6):
        assert np.array_equal(done.state.biases[f"device-{seat}"].numpy(), received + np.float32(4 * (seat + 1)))


async def test_messages_that_differ_share_the_tensors_that_do_not() -> None:
    body = (await ran(spec_of("probe_seat"), n_edges=1, agent_devices=ONE)).tape.of("/visits")[0]
    messages = codec.read_header(body).record["messages"]
    assert [message["factor"] for message in messages] == [1, 2, 3, 4, 5, 6]
    assert [set(message) for message in messages] == [{"model", "factor"}] * 6
    assert all(message["model"] == messages[0]["model"] for message in messages)
    assert len(body) < 1.5 * MODEL_BYTES


async def test_equal_messages_are_one_message() -> None:
    done = await ran(spec_of("fedavg", num_rounds=1), n_edges=1, agent_devices=ONE)
    body = codec.read_header(done.tape.of("/visits")[0]).record
    assert len(body["messages"]) == 1
    assert [visit["message"] for visit in body["visits"]] == [0] * 6


# ---- per position, by group


def merged(experiment: Any) -> tuple[TensorMap, TensorMap]:
    """Computes one round of probe_position in numpy: the mean update by position, and the positions that have one."""
    sizes = [len(seat.train) for seat in experiment.population.seats]
    means, touched = {}, {}
    for name, start in experiment.initial.items():
        above, below = np.zeros(start.numel()), np.zeros(start.numel())
        for seat, size in enumerate(sizes):
            mask = np.arange(start.numel()) % (seat + 2) == 0
            above += size * mask * (seat + 1) / 64
            below += size * mask
        mean = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        means[name] = torch.from_numpy(mean.astype(np.float32)).reshape(start.shape)
        touched[name] = torch.from_numpy((below > 0).astype(np.float32)).reshape(start.shape)
    return means, touched


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("n_edges", "agent_devices", "edge_upload"), [(1, SIX, "mean"), (3, FOUR, "sum"), (3, ONE, "mean")]
)
async def test_positions_and_groups_are_averaged_over_their_contributors(
    n_edges: int, agent_devices: tuple[int, ...], edge_upload: str
) -> None:
    spec = spec_of("probe_position", num_rounds=1, num_edges=n_edges, edge_upload=edge_upload)
    done = await ran(spec, n_edges=n_edges, agent_devices=agent_devices)
    means, touched = merged(done.experiment)
    assert flat.same_bits(done.model, {name: done.experiment.initial[name] + mean for name, mean in means.items()})
    assert flat.same_bits(done.state.touched, touched)
    assert touched["head.bias"].tolist() == [1, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    sizes = [len(seat.train) for seat in done.experiment.population.seats]
    for group, seats in (("even", (0, 2, 4)), ("odd", (1, 3, 5))):
        n = sum(sizes[seat] for seat in seats)
        weighted = np.float32(sum(sizes[seat] * (seat + 1) / 64 for seat in seats) / n)
        assert done.state.heads[group]["head.bias"].tolist() == [float(weighted)] * 10
        assert done.state.sizes[group] == pytest.approx(n / 3, abs=1e-9)


# ---- the edge is the client


def descended(experiment: Any, num_rounds: int) -> TensorMap:
    """Returns the result of gradient descent on all training samples with softmax regression, in numpy."""
    x = (experiment.data.train_x / 255 - 0.5) / 0.5
    rows = np.concatenate([home.train for home in experiment.population.edges])
    images, labels = x[rows].reshape(len(rows), -1), np.asarray(experiment.data.train_y)[rows]
    weight, bias = (experiment.initial[name].double().numpy() for name in ("head.weight", "head.bias"))
    for _ in range(num_rounds):
        to_weight, to_bias = flat.softmax_gradient(weight, bias, images, labels)
        weight, bias = weight - experiment.spec.lr * to_weight, bias - experiment.spec.lr * to_bias
    return {"head.weight": torch.from_numpy(weight), "head.bias": torch.from_numpy(bias)}


def edge_spec(**more: Any) -> dict[str, Any]:
    """Every visit is one step on all its samples, so the mean by samples equals one step on all training samples."""
    return spec_of(
        "probe_edge", **{"client": "edge", "schedule": "equal", "model": "linear", "batch_size": 1000, **more}
    )


def assert_each_sample_once(done: Ended) -> None:
    seen = np.concatenate([tensor.numpy() for tensor in done.state.seen.values()])
    all_samples = np.concatenate([home.train for home in done.experiment.population.edges])
    assert sorted(seen.tolist()) == sorted(all_samples.tolist())
    for detail in done.rounds:
        assert sum(row.n_samples for row in detail.seats) == 250


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize(("n_edges", "agent_devices"), [(2, FOUR), (1, ONE), (1, SIX)])
async def test_edge_shares_its_samples_in_two_waves_and_trains_each_once(
    n_edges: int, agent_devices: tuple[int, ...]
) -> None:
    done = await ran(edge_spec(num_edges=n_edges), n_edges=n_edges, agent_devices=agent_devices)
    assert_each_sample_once(done)
    assert flat.distance(done.model, descended(done.experiment, 3)) < 1e-6
    visits = Counter((row.seat, row.wave) for detail in done.rounds for row in detail.seats)
    assert visits == {(seat, wave): 3 for seat in range(6 + n_edges) for wave in (0, 1)}


async def test_states_of_edge_devices_and_worker_last_from_wave_to_wave_and_round_to_round() -> None:
    done = await ran(edge_spec(num_edges=2), n_edges=2, agent_devices=FOUR)
    assert [detail.figures for detail in done.rounds] == [{"0": {"rounds": n}, "1": {"rounds": n}} for n in (1, 2, 3)]
    assert done.figures("visits") == {seat: [1, 2, 3, 4, 5, 6] for seat in range(8)}
    assert not any(row.fresh_state for detail in done.rounds for row in detail.seats)


@pytest.mark.whole
async def test_edge_as_client_gives_the_same_bits_with_any_number_of_agents() -> None:
    one, many = [
        await ran(edge_spec(num_edges=2), n_edges=2, agent_devices=agent_devices) for agent_devices in (FOUR, ONE)
    ]
    assert one.info.model_sha256 == many.info.model_sha256
    assert one.links() == many.links()


async def test_edge_that_is_the_client_evaluates_for_its_user() -> None:
    done = await ran(edge_spec(num_edges=2), n_edges=2, agent_devices=FOUR)
    weight, bias = (done.model[name].numpy() for name in ("head.weight", "head.bias"))
    hits = []
    for home in done.experiment.population.edges:
        rows = home.test.indices
        x = ((done.experiment.data.test_x[rows] / 255 - 0.5) / 0.5).reshape(len(rows), -1)
        hits.append(np.mean((x @ weight.T + bias).argmax(axis=1) == done.experiment.data.test_y[rows]))
    assert done.info.accuracy_of == "mean over clients"
    assert done.info.accuracy == pytest.approx(np.mean(hits))
    assert done.info.final["clients_received"].n == 2
    assert all(edge.received_accuracy is not None for detail in done.rounds for edge in detail.edges)
    assert all(row.received_accuracy is None for detail in done.rounds for row in detail.seats)


@pytest.mark.whole
async def test_share_of_a_lost_device_is_given_to_another(tmp_path: Path) -> None:
    """In round 2 a device does not answer; all samples are nevertheless trained on, each once."""

    async def lose(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if agents_of(request) and request.url.path == "/visits":
            order = codec.read_header(await request.aread()).record
            stage, seats = order["stage"], [visit["seat"] for visit in order["visits"]]
            if (stage["round_no"], stage["wave"], seats) == (2, 0, [3]):
                return answer(200, b"garbage")
        return await pass_on()

    done = await run(tmp_path, edge_spec(num_rounds=2), tamper=lose, n_edges=1, agent_devices=SIX)
    assert [(failure.seat, failure.reason) for failure in done.rounds[1].failures] == [(3, "wire")]
    assert_each_sample_once(done)
    assert flat.distance(done.model, descended(done.experiment, 2)) < 1e-6
    second = {(row.seat, row.wave): row.n_samples for row in done.rounds[1].seats}
    share = second[1, 0] + second[1, 1]
    assert (3, 1) not in second
    assert second[0, 1] == pytest.approx(share / 2 + share, abs=2)


# ---- a phase that collects, seats that are held out


def collect_spec(**more: Any) -> dict[str, Any]:
    return spec_of("probe_collect", **{"held_out_fraction": 0.34, "num_rounds": 2, **more})


def pool(experiment: Any, seats: list[int]) -> tuple[np.ndarray[Any, Any], int]:
    """Returns labels and pixels of some seats in plain numpy."""
    rows = np.concatenate([experiment.population.seats[seat].train for seat in seats])
    return np.bincount(experiment.data.train_y[rows], minlength=10), int(
        experiment.data.train_x[rows].astype(np.int64).sum()
    )


def roles(experiment: Any) -> tuple[list[int], list[int]]:
    held_out = [seat.number for seat in experiment.population.seats if seat.role == "held_out"]
    return [seat.number for seat in experiment.population.seats if seat.number not in held_out], held_out


@pytest.mark.matrix
@pytest.mark.parametrize(("n_edges", "agent_devices"), [(2, FOUR), (1, SIX)])
async def test_collected_statistics_are_pooled_and_broadcast_in_the_next_phase(
    n_edges: int, agent_devices: tuple[int, ...]
) -> None:
    done = await ran(collect_spec(num_edges=n_edges), n_edges=n_edges, agent_devices=agent_devices)
    trainers, held_out = roles(done.experiment)
    assert len(held_out) == 2
    labels, pixels = pool(done.experiment, trainers)
    assert list(done.state.clients) == [f"device-{seat}" for seat in trainers]
    assert sum(one.labels for one in done.state.clients.values()).tolist() == labels.tolist()
    assert done.figures("zeros") == {seat: [labels[0]] * 2 for seat in trainers}
    assert done.figures("pixels") == {seat: [pixels] * 2 for seat in trainers}
    assert [detail.phase for detail in done.rounds] == ["statistics", "train", "train"]
    assert done.rounds[0].model_sha256 == digest(done.experiment.initial)
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 3, first=2))


async def test_held_out_seats_only_evaluate() -> None:
    done = await ran(collect_spec(num_edges=2), n_edges=2, agent_devices=FOUR)
    trainers, held_out = roles(done.experiment)
    for detail in done.rounds:
        outcomes = {row.seat: row.outcome for row in detail.seats}
        word = "collected" if detail.round_no == 1 else "used"
        assert outcomes == dict.fromkeys(trainers, word) | dict.fromkeys(held_out, "evaluated")
        for row in detail.seats:
            assert row.n_test == len(done.experiment.population.seats[row.seat].test)
            assert row.seat in trainers or (row.n_samples == 0 and row.up_bytes < 2_000)
    assert done.info.final["held_out_received"].n == 2
    assert done.info.final["clients_received"].n == 4


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("agent_devices", [ONE, SIX])
async def test_seat_that_joins_late_collects_first_and_then_trains(
    agent_devices: tuple[int, ...], tmp_path: Path
) -> None:
    async with federation(tmp_path, n_edges=1, agent_devices=agent_devices) as fed:
        run_id = await fed.submit(collect_spec(max_devices=7))
        before = await ended(fed, run_id)
        await fed.start_agent(len(agent_devices), devices=1)
        await fed.until(lambda: fed.n_agents() == len(agent_devices) + 1)
        more = await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 2})
        assert more.json()["status"] == "pending", more.text
        done = await ended(fed, run_id)
    trainers, _ = roles(done.experiment)
    fourth, fifth = done.rounds[3:]
    assert {row.seat: row.outcome for row in fourth.seats}[6] == "collected"
    assert {row.seat: row.outcome for row in fifth.seats}[6] == "used"
    early, late = pool(done.experiment, [seat for seat in trainers if seat != 6]), pool(done.experiment, trainers)
    assert early[1] < late[1]
    assert done.figures("pixels") == {seat: [late[1]] if seat == 6 else [early[1]] * 3 + [late[1]] for seat in trainers}
    chosen = {round_no: [seat for seat in trainers if seat != 6 or round_no == 5] for round_no in range(2, 6)}
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 5, first=2, chosen=chosen.__getitem__))
    assert flat.same_bits(before.model, flat.fedavg(done.experiment, 3, first=2, chosen=chosen.__getitem__))
