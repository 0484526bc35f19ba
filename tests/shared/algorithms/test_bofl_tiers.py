"""BOFL through three real tiers: the edge model, counts of refusals, and faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from shared.core.tensors import digest
from shared.federation.messages import UploadOrder
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow
from shared.storage import redis_keys
from shared.training import models
from shared.training.evaluation import evaluate
from shared.wire import codec
from tests.faults import garbage
from tests.federation import EDGE_PORT, Federation, PassOn
from tests.shared.algorithms import plain_bofl
from tests.shared.algorithms.layouts import Ended, agents_of, ended, federation, ran, run
from tests.shared.algorithms.test_bofl import AROUND, MODEL_BYTES, SIGN_BYTES, mixed_spec, rows_of, spec_of
from tests.test_recovery import lose_on_request

NARROW = {"margin": "literal", "phi": 0.0, "omega": 0.0}
"""All devices except the leaders are class C."""
SEVEN = (1,) * 7
ORDER = 6_000
"""Bounds the bytes of an order beside its tensors; it contains the spec."""


def by_class(detail: RoundDetail, *labels: str, wave: int = 0) -> list[VisitRow]:
    return [row for row in detail.seats if row.label in labels and row.wave == wave]


def narrow_spec(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return spec_of({**NARROW, **params}, **more)


def seats_of(rows: list[VisitRow]) -> set[int]:
    return {row.seat for row in rows}


# ---- the edge model


async def test_class_c_gets_the_edge_model_and_the_global_one_in_its_next_visit() -> None:
    done = await ran(narrow_spec({}), agent_devices=SEVEN)
    assert not any("edge_model_bytes" in row.figures for row in done.rounds[0].seats)
    for before, after in pairwise(done.rounds):
        refused = seats_of(by_class(before, "C"))
        assert len(refused) == 5
        for row in after.seats:
            given = MODEL_BYTES if row.seat in refused else 0
            assert row.figures.get("edge_model_bytes", 0) == given
            assert MODEL_BYTES + given < row.down_bytes < MODEL_BYTES + given + ORDER


async def test_messages_of_class_c_share_the_edge_model() -> None:
    """Four devices are at one agent: the orders of round 2 contain two models, not eight."""
    spec = narrow_spec({}, num_devices=4, num_edges=1, num_rounds=2)
    orders = (await ran(spec, n_edges=1, agent_devices=(4,))).tape.of("/visits")
    assert [len(codec.read_header(body).record["messages"]) for body in orders[:2]] == [1, 2]
    assert MODEL_BYTES < len(orders[0]) < 1.3 * MODEL_BYTES
    assert 2 * MODEL_BYTES < len(orders[1]) < 2.3 * MODEL_BYTES


@pytest.mark.whole
async def test_class_c_may_train_again_from_the_edge_model_and_keeps_the_result() -> None:
    done = await ran(narrow_spec({"adjust": "train"}, num_rounds=2), agent_devices=SEVEN)
    for detail in done.rounds:
        again = [row for row in detail.seats if row.wave == 1]
        assert seats_of(again) == seats_of(by_class(detail, "C"))
        for row in again:
            assert (row.outcome, row.reason, row.report_bytes < AROUND) == ("idle", "no update", True)
            assert row.figures["edge_model_bytes"] == MODEL_BYTES
            assert MODEL_BYTES < row.down_bytes < MODEL_BYTES + ORDER
            assert row.up_bytes < AROUND
        assert all(row.down_bytes < MODEL_BYTES + ORDER for row in detail.seats if row.wave == 0)
    assert {codec.decode(UploadOrder, body).stage.wave for body in done.tape.of("/uploads")} == {0}
    found = done.info.final["clients_own"]
    assert found.n == 5
    assert found.accuracy == pytest.approx(float(np.mean(own_accuracies(done))))
    assert (await ran(narrow_spec({}), agent_devices=SEVEN)).info.final.get("clients_own") is None


def own_accuracies(done: Ended) -> list[float]:
    """Own-model accuracies of the last round's class C devices, which trained once more from their edge's model."""
    experiment, plain, accuracies = done.experiment, plain_bofl.bofl(done.experiment), []
    for (round_no, _, number), row in plain.rows.items():
        if round_no == experiment.spec.num_rounds and row.label == "C":
            seat = experiment.population.seats[number]
            own, _, _ = plain_bofl.local(experiment, number, (round_no, 0, 1), plain.edges[seat.home_edge])
            models.write_state(experiment.model, own)
            score = evaluate(experiment.model, experiment.data.test_x, experiment.data.test_y, seat.test.indices)
            accuracies.append(score.n_correct / score.n)
    return accuracies


# ---- counts of refusals


def check_counts(rounds: list[RoundDetail], delta: int) -> set[int]:
    """Checks that a refused device counts one more and is retired for good at delta; returns the retired."""
    counts, gone = Counter[int](), set[int]()
    for detail in rounds:
        for row in detail.seats:
            assert row.seat not in gone
            counts[row.seat] += row.label == "C"
            assert row.figures["refusals"] == counts[row.seat]
            assert (row.outcome == "refused") == (row.label == "C")
        full = {seat: f"refused {n} times" for seat, n in counts.items() if n >= delta and seat not in gone}
        assert detail.retired == full
        assert detail.labels == Counter(row.label for row in detail.seats)
        gone |= full.keys()
    return gone


async def more_rounds(fed: Federation, run_id: str, n: int) -> None:
    more = await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": n})
    assert more.status_code == 200, more.text


async def restart_edges(fed: Federation, run_id: str, *, forget: bool) -> None:
    for number in (0, 1):
        await fed.stop(f"edge-{number}")
        for prefix in redis_keys.all_of_run_at_edge(f"edge-{number + 1}", run_id) if forget else ():
            await fed.store.delete_prefix(prefix)
        await fed.start_edge(number)
    await fed.until(lambda: fed.n_agents() == len(fed.agent_devices))


@pytest.mark.whole
async def test_device_retired_by_its_first_refusal_stays_retired_after_a_restart_and_the_record_says_why(
    tmp_path: Path,
) -> None:
    async with federation(tmp_path, agent_devices=(3, 4)) as fed:
        run_id = await fed.submit(narrow_spec({"delta": 1}, num_rounds=1))
        await ended(fed, run_id)
        await restart_edges(fed, run_id, forget=False)
        await more_rounds(fed, run_id, 2)
        done = await ended(fed, run_id)
        seats = (await fed.seats(run_id)).seats
    out = check_counts(done.rounds, delta=1)
    assert len(out) == 5
    assert done.rounds[0].retired == dict.fromkeys(out, "refused 1 times")
    for detail in done.rounds[1:]:
        assert seats_of(list(detail.seats)) == set(range(7)) - out
        assert {row.label for row in detail.seats} == {"leader"}
    assert {seat.seat: seat.reason for seat in seats if seat.state == "retired"} == done.rounds[0].retired


@pytest.mark.slow
@pytest.mark.parametrize("forget", [False, True], ids=["with its state", "without"])
async def test_refusals_survive_a_restart_of_the_edge(forget: bool, tmp_path: Path) -> None:
    async with federation(tmp_path, agent_devices=(3, 4)) as fed:
        run_id = await fed.submit(narrow_spec({"delta": 2}, num_rounds=1))
        await ended(fed, run_id)
        await restart_edges(fed, run_id, forget=forget)
        await more_rounds(fed, run_id, 2)
        done = await ended(fed, run_id)
    assert len(check_counts(done.rounds, delta=2)) >= 3
    adjusted = {row.seat for row in done.rounds[1].seats if "edge_model_bytes" in row.figures}
    assert adjusted == (set() if forget else seats_of(by_class(done.rounds[0], "C")))


@pytest.mark.slow
async def test_signs_of_the_first_model_reach_edges_that_have_lost_their_state_and_are_counted(tmp_path: Path) -> None:
    params = {"sigma_against": "initial", "adjust": "train"}
    async with federation(tmp_path, agent_devices=(3, 4)) as fed:
        run_id = await fed.submit(mixed_spec(params, num_rounds=2))
        await ended(fed, run_id)
        await restart_edges(fed, run_id, forget=True)
        await more_rounds(fed, run_id, 1)
        restarted = await ended(fed, run_id)
    done = await ran(mixed_spec(params, num_rounds=3), agent_devices=SEVEN)
    assert rows_of(restarted) == rows_of(done) == plain_bofl.bofl(done.experiment).rows
    assert restarted.info.model_sha256 == done.info.model_sha256
    without = await ran(mixed_spec({"adjust": "train"}, num_rounds=1), agent_devices=(3, 4))
    more = {a.edge_bytes_down - b.edge_bytes_down for a, b in zip(done.rounds, without.rounds, strict=False)}
    assert all(2 * SIGN_BYTES < n_bytes < 2 * SIGN_BYTES + 600 for n_bytes in more)


@pytest.mark.slow
async def test_refusals_follow_a_seat_to_another_edge_and_back(tmp_path: Path) -> None:
    async with federation(tmp_path, agent_devices=(3, 4)) as fed:
        registry = fed.apps["cloud"].state.cloud.registry
        run_id = await fed.submit(narrow_spec({"delta": 3}, num_rounds=1))
        await ended(fed, run_id)
        await fed.lose("edge-1")
        await more_rounds(fed, run_id, 1)
        await ended(fed, run_id)
        await fed.start_edge(1)
        await fed.until(lambda: registry.edge_is_live("edge-2") and fed.n_agents() == 2)
        await more_rounds(fed, run_id, 2)
        done = await ended(fed, run_id)
    assert len(check_counts(done.rounds, delta=3)) >= 3
    first, second, third, _ = done.rounds
    assert {row.edge for row in second.seats} == {"edge-1"}
    assert {row.edge for row in third.seats} == {"edge-1", "edge-2"}
    at_home = seats_of([row for row in first.seats if row.edge == "edge-1" and row.label == "C"])
    assert {row.seat for row in second.seats if "edge_model_bytes" in row.figures} == at_home
    # the model of the edge that was offline is outdated, so no device starts from it
    assert {row.edge for row in third.seats if "edge_model_bytes" in row.figures} == {"edge-1"}


@pytest.mark.whole
async def test_repeated_round_counts_a_refusal_once(tmp_path: Path) -> None:
    gone: list[asyncio.Task[None]] = []
    async with federation(tmp_path, agent_devices=(3, 4)) as fed:
        run_id = await fed.submit(narrow_spec({"delta": 3}, num_rounds=1, quorum=0.9, timeouts={"visit_s": 3000}))
        await ended(fed, run_id)
        lose_on_request(fed, "edge-1", EDGE_PORT + 1, "/rounds", gone)
        await more_rounds(fed, run_id, 2)
        done = await ended(fed, run_id)
        await asyncio.gather(*gone)
    assert [detail.attempts for detail in done.rounds] == [1, 2, 1]
    assert check_counts(done.rounds, delta=3)


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("homes", [{1}, {0, 1}], ids=["one edge", "both edges"])
async def test_refusals_count_where_no_update_arrived(homes: set[int], tmp_path: Path) -> None:
    """In round 1 the leaders' uploads are lost: those edges form no model, but their refusals stand."""

    async def lose(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if agents_of(request) and request.url.path == "/uploads":
            order = codec.read_header(await request.aread()).record
            if order["stage"]["round_no"] == 1 and order["edge"] in homes:
                return await garbage(request, pass_on)
        return await pass_on()

    done = await run(tmp_path, narrow_spec({"delta": 9}), tamper=lose, agent_devices=SEVEN)
    first, second, _ = done.rounds
    for detail in done.rounds:
        assert all(
            row.figures["refusals"] == detail.round_no for row in by_class(detail, "C") if row.seat in always(done)
        )
    assert [row.outcome for row in first.edges] == ["idle" if home in homes else "used" for home in (0, 1)]
    assert (first.model_sha256 == digest(done.experiment.initial)) == (homes == {0, 1})
    adjusted = {row.seat for row in second.seats if "edge_model_bytes" in row.figures}
    assert adjusted == {row.seat for row in by_class(first, "C") if row.seat % 2 not in homes}


def always(done: Ended) -> set[int]:
    """Returns the seats that were class C in every round."""
    return set.intersection(*(seats_of(by_class(detail, "C")) for detail in done.rounds))
