"""Runs of one spec in many layouts have the same bits, link bytes and simulated seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from shared.wire import codec
from tests.federation import EDGE_PORT, PassOn
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import agents_of, body_of, ended, federation, ran, run

ROUNDS = 2


def spec_of(**more: Any) -> dict[str, Any]:
    spec = {
        "data": {"name": "digits", "n_train": 300, "n_test": 60},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "num_devices": 6,
        "num_edges": 2,
        "num_rounds": ROUNDS,
        "lr": 0.1,
        "devices": {"profile": "standard"},  # whatever their agents name
    }
    return {**spec, **more}


# ---- agents and their start order

LAYOUTS: dict[str, dict[str, Any]] = {
    "one agent": {"agent_devices": (6,)},
    "four agents, mixed": {"agent_devices": (1, 3, 1, 1), "order": (2, 0, 3, 1)},
    "several profiles": {"agent_devices": (2, 2, 1, 1), "profiles": ("phone_low", "standard", "jetson", "phone_low")},
    "fewer devices than seats": {"agent_devices": (1, 1, 1, 1)},
    "six agents": {"agent_devices": (1,) * 6},
}


@pytest.mark.whole
async def test_model_links_and_simulated_time_do_not_depend_on_the_agents(tmp_path: Path) -> None:
    found = {name: await run(tmp_path, spec_of(), **layout) for name, layout in LAYOUTS.items()}
    first = found["one agent"]
    assert flat.same_bits(first.model, flat.fedavg(first.experiment, ROUNDS))
    for name, done in found.items():
        assert done.info.model_sha256 == first.info.model_sha256, name
        assert done.links() == first.links(), name
        assert (done.info.bytes_up, done.info.bytes_down) == (first.info.bytes_up, first.info.bytes_down), name
        assert done.info.simulated_s == first.info.simulated_s, name
        assert done.info.final == first.info.final, name
    hosts = {name: len({row.agent for row in done.rounds[0].seats}) for name, done in found.items()}
    assert hosts["one agent"] == 1
    assert hosts["four agents, mixed"] == 4
    assert hosts["six agents"] == 6


@pytest.mark.whole
async def test_hierarchical_model_does_not_depend_on_the_agents(tmp_path: Path) -> None:
    spec = spec_of(edge_rounds=2, select="random", fraction_train=0.5, momentum=0.9)
    one, many = [await run(tmp_path, spec, agent_devices=agent_devices) for agent_devices in ((6,), (2, 2, 1, 1))]
    assert one.info.model_sha256 == many.info.model_sha256
    assert one.links() == many.links()


# ---- edges


@pytest.mark.matrix(2)
@pytest.mark.parametrize("n_edges", [1, 3])  # two: see above
async def test_exact_sums_give_the_flat_references_bits_through_any_edges(n_edges: int) -> None:
    done = await ran(spec_of(num_edges=n_edges), n_edges=n_edges, agent_devices=(2, 2, 1, 1))
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, ROUNDS))
    assert {edge.n_used for edge in done.rounds[0].edges} == {6 // n_edges}


@pytest.mark.whole
async def test_means_formed_at_edges_differ_from_exact_sums_by_rounding_only(tmp_path: Path) -> None:
    """An edge sends half the bytes to the cloud, and the model agrees within 1e-6."""
    summed = await ran(spec_of(num_edges=3), n_edges=3, agent_devices=(2, 2, 1, 1))
    averaged = await run(tmp_path, spec_of(num_edges=3, edge_upload="mean"), n_edges=3, agent_devices=(3, 3))
    assert summed.info.spec.edge_upload == "sum"
    assert flat.distance(summed.model, averaged.model) < 1e-6
    for exact, rounded in zip(summed.rounds, averaged.rounds, strict=True):
        assert exact.edge_bytes_up - rounded.edge_bytes_up > 3 * 4 * 4_810 * 0.95
        # a loss with different last digits may be a few characters longer
        assert abs(exact.device_bytes_up - rounded.device_bytes_up) < 1e-3 * exact.device_bytes_up


@pytest.mark.whole
async def test_selection_at_one_edge_is_the_documented_stream(tmp_path: Path) -> None:
    """FedAvg with a fraction C: selection and averaging are computed here, training by the project's loop."""

    def chosen(round_no: int) -> list[int]:
        rng = np.random.default_rng(flat.stream(0, "edge 0", round_no, 0, 0, "select"))
        return sorted(int(seat) for seat in rng.choice(6, size=3, replace=False))

    spec = spec_of(num_edges=1, select="random", fraction_train=0.5)
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(2, 2, 1, 1))
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, ROUNDS, chosen=chosen))
    assert [sorted(row.seat for row in detail.seats) for detail in done.rounds] == [
        chosen(n) for n in range(1, ROUNDS + 1)
    ]


# ---- bytes


class ByteCounter:
    """Counts the bytes of the bodies on each link during a round."""

    def __init__(self) -> None:
        self.down: Counter[tuple[int, int]] = Counter()
        self.up: Counter[tuple[int, int]] = Counter()

    async def __call__(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        at_edge = request.url.path == "/rounds" and (request.url.port or 0) >= EDGE_PORT
        if not at_edge and not (agents_of(request) and request.url.path in ("/visits", "/uploads")):
            return await pass_on()
        sent = await request.aread()
        order = codec.read_header(sent).record
        got, response = await body_of(await pass_on())
        trains = order["kind"] == "train" if at_edge else order["visits"][0]["task"]["kind"] == "train"
        if trains and response.status_code == 200:
            stage = order if at_edge else order["stage"]
            client = -1 - order["edge"] if at_edge else order["visits"][0]["seat"]
            self.down[stage["round_no"], client] += len(sent)
            self.up[stage["round_no"], client] += len(got)
        return response


async def test_with_one_device_an_agent_link_bytes_are_socket_bytes(tmp_path: Path) -> None:
    scales = ByteCounter()
    done = await run(tmp_path, spec_of(), tamper=scales, agent_devices=(1,) * 6)
    for detail in done.rounds:
        for row in detail.seats:
            assert (row.down_bytes, row.up_bytes) == (
                scales.down[detail.round_no, row.seat],
                scales.up[detail.round_no, row.seat],
            )
        for edge in detail.edges:
            key = detail.round_no, -1 - edge.home
            assert (edge.down_bytes, edge.up_bytes) == (scales.down[key], scales.up[key])
        weighed = sum(n for (round_no, _), n in (scales.down + scales.up).items() if round_no == detail.round_no)
        assert detail.socket_bytes == weighed == detail.bytes_up + detail.bytes_down


async def test_agents_that_sum_updates_send_fewer_bytes_than_their_devices_links_carry(tmp_path: Path) -> None:
    scales = ByteCounter()
    done = await run(tmp_path, spec_of(num_edges=1), tamper=scales, n_edges=1, agent_devices=(6,))
    first = done.rounds[0]
    moved = sum(n for (round_no, client), n in scales.up.items() if round_no == 1 and client >= 0)
    assert moved < 0.5 * first.device_bytes_up
    assert first.socket_bytes < first.bytes_up + first.bytes_down


# ---- agents that join and leave


class Gate:
    """Holds the visits of one round until `open` is set."""

    def __init__(self, round_no: int) -> None:
        self.round_no = round_no
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if agents_of(request) and request.url.path == "/visits":
            order = codec.read_header(await request.aread()).record
            if order["stage"]["round_no"] == self.round_no:
                self.reached.set()
                await self.open.wait()
        return await pass_on()


@pytest.mark.whole
async def test_device_that_joins_late_takes_the_free_seat_from_the_next_round_on(tmp_path: Path) -> None:
    gate = Gate(2)
    async with federation(tmp_path, agent_devices=(2, 2, 1, 1)) as fed:
        fed.router.tamper = gate
        run_id = await fed.submit(spec_of(max_devices=7, num_rounds=4))
        await gate.reached.wait()
        await fed.start_agent(4, devices=1)
        await fed.until(lambda: fed.n_agents() == 5)
        gate.open.set()
        done = await ended(fed, run_id)
    taken = [sorted(row.seat for row in detail.seats) for detail in done.rounds]
    assert taken == [[*range(6)], [*range(6)], [*range(7)], [*range(7)]]
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 4, chosen=lambda n: taken[n - 1]))
    assert sum(len(seat.train) for seat in done.experiment.population.seats) == 300, (
        "the seventh seat has its own samples"
    )


@pytest.mark.whole
async def test_agent_that_leaves_is_named_and_the_round_continues(tmp_path: Path) -> None:
    gate = Gate(2)
    async with federation(tmp_path, agent_devices=(2, 2, 1, 1)) as fed:
        fed.router.tamper = gate
        run_id = await fed.submit(spec_of(num_rounds=3))
        await gate.reached.wait()
        rows = (await fed.round(run_id, 1)).seats
        name = fed.apps["agent-3"].state.agent.membership.registration.agent
        (seat,) = [row.seat for row in rows if row.agent == name]
        await fed.lose("agent-3")
        gate.open.set()
        done = await ended(fed, run_id)
    last = done.rounds[-1]
    (row,) = [row for row in last.seats if row.seat == seat]
    assert (row.outcome, row.reason, row.agent) == ("failed", "lost", name)
    assert [(failure.seat, failure.reason) for failure in last.failures] == [(seat, "lost")]
    assert name in last.failures[0].detail
    assert last.n_used == 5
