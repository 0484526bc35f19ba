"""An edge over many rounds: seatings, states, files, restarts, what it forgets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge_server.rounds.reply_checks import check_sizes, check_uploads, check_visits
from shared.core.errors import WireError
from shared.core.scores import Score
from shared.federation.aggregation import PartialSum
from shared.federation.messages import Contribution, Failure, Outcome, UploadAnswer, Uploads, VisitAnswer
from shared.federation.visits.uploads import held_bytes
from shared.storage import redis_keys
from tests.federation import EDGE_PORT, Federation, Gate, PassOn, small_spec


def blobs(fed: Federation, number: int) -> list[str]:
    return sorted(path.name for path in (fed.folder / f"edge-{number}" / "blobs").iterdir())


async def test_a_seating_that_an_edge_does_not_know_is_sent_again(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        plain = await fed.run(small_spec())
        gate = Gate(fed, closed_at=2)
        run_id = await fed.submit(small_spec())
        await gate.reached.wait()
        for number in (1, 2):
            (key,) = await fed.store.keys(redis_keys.edge_seatings(f"edge-{number}", run_id))
            await fed.store.delete(key)
        fed.router.calls.clear()
        gate.open.set()
        info = await fed.finish(run_id)
        assert info.model_sha256 == plain.model_sha256
        # The evaluation after round 2 met edges that did not know: asked, told, asked again.
        assert [call for call in fed.router.calls if call[0] >= EDGE_PORT and call[0] < EDGE_PORT + 2].count(
            (EDGE_PORT, "/placements")
        ) == 1


async def test_an_edge_keeps_one_seating_a_home_however_often_seats_move(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        gate = Gate(fed, closed_at=2)
        run_id = await fed.submit(small_spec(num_rounds=4, max_devices=8))
        await gate.reached.wait()
        await fed.start_agent(6, devices=2)
        await fed.until(lambda: fed.n_agents() == 7)
        gate.open.set()
        await fed.finish(run_id)
        assert [len(await fed.store.keys(redis_keys.edge_seatings(f"edge-{n}", run_id))) for n in (1, 2)] == [1, 1]


async def test_after_many_rounds_an_edge_keeps_two_states_of_a_run_and_their_files(
    tmp_path: Path, counting: str
) -> None:
    async with Federation(tmp_path / "f") as fed:
        info = await fed.run(small_spec(num_rounds=12, algorithm=counting))
        assert info.status == "completed"
        for number in (0, 1):
            states = await fed.store.scan(redis_keys.edge_states(f"edge-{number + 1}", info.run, number))
            assert [key.rpartition(":")[2][:8] for key in states] == ["00000011", "00000012"]
            assert {value.decode() for value in states.values()} <= set(blobs(fed, number))
            assert len(blobs(fed, number)) <= 2
        # The cloud: one state, and a table for each round.
        assert len(list((tmp_path / "f" / "cloud" / "blobs").iterdir())) == 1 + 12
        # The agents: at most the last state that counts and the one before it, for each seat.
        for number in range(6):
            kept = list((tmp_path / "f" / f"agent-{number}" / "seats").glob("*/*"))
            assert [len(list(seat.iterdir())) for seat in kept] == [2]


async def test_a_forgotten_run_leaves_nothing_at_edge_and_agent(tmp_path: Path, counting: str) -> None:
    async with Federation(tmp_path / "f", n_edges=1, rooms=(2,)) as fed:
        spec = small_spec(num_edges=1, num_devices=2, algorithm=counting)
        first, second = await fed.run(spec), await fed.run(spec)
        folder = tmp_path / "f" / "agent-0" / "seats"
        assert (await fed.client.delete(f"/runs/{first.run}")).status_code == 204
        await fed.until(lambda: {path.name for path in folder.iterdir()} == {f"={second.run}"})
        left = await fed.store.keys(redis_keys.edge_runs("edge-1"))
        assert {redis_keys.run_at_edge("edge-1", key) for key in left} == {second.run}
        await fed.client.delete(f"/runs/{second.run}")
        await fed.until(lambda: not list(folder.iterdir()) and not blobs(fed, 0))
        assert await fed.store.keys(redis_keys.edge_runs("edge-1")) == []


async def test_an_edge_restarted_between_rounds_changes_nothing(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        plain = await fed.run(small_spec(num_rounds=3, edge_rounds=2))
        info = await fed.run(small_spec(num_rounds=1, edge_rounds=2))
        await fed.stop("edge-0")
        await fed.stop("edge-1")
        await fed.start_edge(1)
        await fed.start_edge(0)
        await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 2})
        end = await fed.finish(info.run)
        assert (end.status, end.model_sha256) == ("completed", plain.model_sha256)
        assert (await fed.round(info.run, 2)).failures == ()


async def test_an_edge_restarted_in_the_middle_of_a_round_is_asked_again(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        plain = await fed.run(small_spec())
        restarted: list[asyncio.Task[None]] = []

        async def restart() -> None:
            await fed.stop("edge-1")
            await fed.start_edge(1)

        async def tamper(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
            if request.url.path == "/rounds" and request.url.port == EDGE_PORT + 1 and not restarted:
                restarted.append(asyncio.create_task(restart()))
            return await pass_on()

        fed.router.tamper = tamper
        info = await fed.run(small_spec())
        await asyncio.gather(*restarted)
        assert (info.status, info.model_sha256) == ("completed", plain.model_sha256)
        assert (await fed.round(info.run, 1)).failures == ()


async def test_a_new_run_ends_what_an_edge_still_does_for_another(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        gate = Gate(fed)
        first = await fed.submit(small_spec())
        await gate.reached.wait()
        await fed.client.post(f"/runs/{first}/stop")
        await fed.finish(first)
        gate.open.set()
        fed.router.tamper = None
        assert (await fed.run(small_spec(seed=1))).status == "completed"
        for number in (0, 1):
            once = fed.apps[f"edge-{number}"].state.edge.orders
            assert {line[0] for line in once._work} == {(await fed.info("latest")).run}


# ---- what an agent may answer


def outcome(seat: int, failure: Failure | None = None, kind: str = "train") -> Outcome[None]:
    return Outcome[None].model_validate({"seat": seat, "kind": kind, "failure": failure})


def single(seat: int) -> Contribution[None]:
    return Contribution[None](seat=seat, n_samples=1, update=None)


SUM_OF_TWO = PartialSum(n_updates=2, n_samples=2, means={}, each={})
FAILED = Failure(seat=1, reason="error", detail="x")
ASKED = {0: "train", 1: "train"}


@pytest.mark.parametrize(
    ("outcomes", "uploads", "says"),
    [
        ([outcome(0)], Uploads(), "speaks of"),
        ([outcome(1), outcome(0)], Uploads(), "speaks of"),
        ([outcome(0), outcome(0)], Uploads(), "speaks of"),
        ([outcome(0), outcome(1, kind="evaluate")], Uploads(), "speaks of"),
        ([outcome(0), outcome(1), outcome(2)], Uploads(), "speaks of"),
        ([outcome(0, failure=FAILED), outcome(1)], Uploads(), "the failure of another"),
        ([outcome(0), outcome(1)], Uploads(contributions=(single(2),)), "brings updates of seats [2]"),
        ([outcome(0), outcome(1)], Uploads(contributions=(single(0), single(0))), "some twice"),
        ([outcome(0), outcome(1, failure=FAILED)], Uploads(contributions=(single(1),)), "brings updates of seats [1]"),
        ([outcome(0), outcome(1)], Uploads(partial_sum=SUM_OF_TWO), "does not say whose"),
        ([outcome(0), outcome(1)], Uploads(partial_sum=SUM_OF_TWO, link_bytes={0: 9}), "does not say whose"),
        ([outcome(0), outcome(1)], Uploads(link_bytes={0: 9}), "does not say whose"),
        (
            [outcome(0), outcome(1)],
            Uploads(contributions=(single(0),), partial_sum=SUM_OF_TWO, link_bytes={0: 9, 1: 9}),
            "not both",
        ),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(
    outcomes: list[Outcome[None]], uploads: Uploads[None], says: str
) -> None:
    with pytest.raises(WireError) as caught:
        check_visits(VisitAnswer(outcomes=tuple(outcomes), uploads=uploads), ASKED, hold=False, reports=False)  # type: ignore[arg-type]
    assert says in caught.value.detail


def test_answers_to_what_was_asked_for_pass() -> None:
    both = (outcome(0), outcome(1))
    for uploads in (
        Uploads[None](),
        Uploads(contributions=(single(1),)),
        Uploads(partial_sum=SUM_OF_TWO, link_bytes={0: 9, 1: 9}),
    ):
        check_visits(VisitAnswer(outcomes=both, uploads=uploads), ASKED, hold=False, reports=False)  # type: ignore[arg-type]
    check_visits(VisitAnswer(outcomes=both, uploads=Uploads()), ASKED, hold=True, reports=False)  # type: ignore[arg-type]
    with pytest.raises(WireError):
        check_visits(
            VisitAnswer(outcomes=both, uploads=Uploads(contributions=(single(1),))),
            ASKED,  # type: ignore[arg-type]
            hold=True,
            reports=False,
        )


@pytest.mark.parametrize(
    ("changes", "hold", "reports", "says"),
    [
        ({"held_bytes": 9}, False, False, "updates of seats [1] are held back"),
        ({"held_bytes": 9, "kind": "evaluate"}, True, False, "updates of seats [1] are held back"),
        ({"held_bytes": 9, "failure": FAILED}, True, False, "updates of seats [1] are held back"),
        ({"held_bytes": 9}, True, True, "reports of [] and updates of [1]"),
        ({"report": None, "held_bytes": 9}, True, False, None),
    ],
)
def test_only_updates_that_are_due_are_held_and_reports_announce_them(
    changes: dict[str, Any], hold: bool, reports: bool, says: str | None
) -> None:
    second = outcome(1).replace(**changes)
    answer: VisitAnswer[None, None] = VisitAnswer(outcomes=(outcome(0), second), uploads=Uploads())
    asked: dict[int, Any] = {0: "train", 1: second.kind}
    if says is None:
        check_visits(answer, asked, hold=hold, reports=reports)
        return
    with pytest.raises(WireError) as caught:
        check_visits(answer, asked, hold=hold, reports=reports)
    assert says in caught.value.detail


HUGE = 10**400
"""More than a float can be: JSON between tiers has room for it."""


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({name: HUGE}, f"outcomes.{name}") for name in ("n_samples", "n_trained", "n_steps", "held_bytes")),
        ({"train": Score(n=HUGE, n_correct=0, loss_sum=0.0)}, "outcomes.train.n"),
        ({"received": Score(n=1, n_correct=HUGE, loss_sum=0.0)}, "outcomes.received"),
        ({"own": Score(n=1, n_correct=2, loss_sum=0.0)}, "outcomes.own"),
        ({"train": Score(n=1, n_correct=0, loss_sum=-1e308)}, "outcomes.train"),
    ],
)
def test_numbers_with_which_nothing_can_be_counted_are_refused(changes: dict[str, Any], field: str) -> None:
    """One of them would end the round of everybody where time, records or losses are computed from it."""
    answer: VisitAnswer[None, None] = VisitAnswer(outcomes=(outcome(0).replace(**changes),), uploads=Uploads())
    with pytest.raises(WireError) as caught:
        check_visits(answer, {0: "train"}, hold=True, reports=False)
    assert caught.value.field == field


def test_weights_with_which_nothing_can_be_counted_are_refused() -> None:
    heavy = single(0).replace(n_samples=HUGE)
    sums = Uploads[None](partial_sum=SUM_OF_TWO.replace(n_samples=HUGE), link_bytes={0: 9, 1: 9})
    large = Uploads[None](partial_sum=SUM_OF_TWO, link_bytes={0: 9, 1: HUGE})
    for uploads, field in (
        (Uploads[None](contributions=(heavy, single(1))), "uploads.n_samples"),
        (sums, "uploads.n_samples"),
        (large, "uploads.link_bytes"),
    ):
        with pytest.raises(WireError) as caught:
            check_uploads(UploadAnswer(uploads=uploads), [0, 1])
        assert caught.value.field == field
    with pytest.raises(WireError) as caught:
        check_uploads(UploadAnswer(uploads=Uploads(), late=(heavy,)), [], [0])
    assert caught.value.field == "late.n_samples"


@pytest.mark.parametrize(
    ("sent", "late", "fits"),
    [((0,), (1,), True), ((0, 1), (), False), ((), (0, 1), False), ((1,), (0,), False), ((0,), (1, 1), False)],
)
def test_a_late_update_comes_as_one_and_no_other_does(sent: tuple[int, ...], late: tuple[int, ...], fits: bool) -> None:
    uploads = Uploads[None](contributions=tuple(single(seat) for seat in sent))
    answer: UploadAnswer[None] = UploadAnswer(uploads=uploads, late=tuple(single(seat) for seat in late))
    if fits:
        check_uploads(answer, [0], [1])
    else:
        with pytest.raises(WireError):
            check_uploads(answer, [0], [1])


@pytest.mark.parametrize("reports", [False, True])
def test_an_update_is_as_large_as_was_said(reports: bool) -> None:
    """By the size it was decided whether it comes in time."""
    sizes = [held_bytes(outcome(seat), single(seat), reports=reports) for seat in (0, 1)]
    told = {seat: outcome(seat).replace(held_bytes=size) for seat, size in enumerate(sizes)}
    answer: UploadAnswer[None] = UploadAnswer(uploads=Uploads(contributions=(single(0),)), late=(single(1),))
    check_sizes(answer, told, reports=reports)
    for seat in (0, 1):
        with pytest.raises(WireError, match=f"the update of seat {seat} has"):
            check_sizes(answer, {**told, seat: told[seat].replace(held_bytes=sizes[seat] - 1)}, reports=reports)


@pytest.mark.parametrize(
    ("contributions", "failures", "fits"),
    [
        ((single(0), single(1)), (), True),
        ((single(0),), (FAILED,), True),
        ((single(0),), (), False),
        ((single(0), single(1), single(2)), (), False),
        ((single(0), single(1)), (FAILED,), False),
        ((single(0), single(1)), (Failure(reason="error", detail="of nobody"),), False),
    ],
)
def test_uploads_are_those_that_were_asked_for_or_said_to_be_lost(
    contributions: tuple[Contribution[None], ...], failures: tuple[Failure, ...], fits: bool
) -> None:
    answer: UploadAnswer[None] = UploadAnswer(uploads=Uploads(contributions=contributions), failures=failures)
    if fits:
        check_uploads(answer, [0, 1])
    else:
        with pytest.raises(WireError):
            check_uploads(answer, [0, 1])
