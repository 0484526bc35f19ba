"""What a process reports is checked against what its recipient knows: whoever claims something else pays alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.bounds import DETAIL_CHARS, LABEL_CHARS
from shared.core.scores import Score
from shared.federation.messages import Failure, RoundAnswer, VisitAnswer
from shared.federation.registry import load_algorithm
from shared.service.order_headers import CHECKSUM_HEADER
from shared.wire import codec
from tests.faults import answer, at
from tests.federation import AGENT_PORT, EDGE_PORT, PassOn, Tamper
from tests.shared.algorithms.layouts import federation, ran, run

SPEC: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 120, "n_test": 20},
    "num_devices": 4,
    "num_edges": 2,
    "num_rounds": 2,
}
Forge = Callable[[Any], Any]


def changing(kind: Any, port: int, path: str, forge: Forge, times: int = 1) -> Tamper:
    """Replaces the first answers of a service by what `forge` makes of them."""

    async def reply(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        whole = await pass_on()
        body = codec.encode(forge(codec.decode(kind, await whole.aread(), stored=True)))
        headers = {name: value for name, value in whole.headers.items() if name != CHECKSUM_HEADER}
        return answer(bytes(body.join()), httpx2.Headers({**headers, "content-length": str(body.n_bytes)}))

    return at(port, path, reply, times=times)


def of_agent(forge: Forge) -> Tamper:
    kind: Any = VisitAnswer
    return changing(kind[load_algorithm("fedavg").update, Any], AGENT_PORT, "/visits", forge)


def of_edge(forge: Forge, times: int = 1) -> Tamper:
    kind: Any = RoundAnswer
    return changing(kind[load_algorithm("fedavg").update], EDGE_PORT, "/rounds", forge, times)


def seats_that(detail: Any, outcome: str) -> set[int]:
    return {row.seat for row in detail.seats if row.outcome == outcome}


# ---- a device


def claiming(**numbers: Any) -> Forge:
    """Changes numbers of the first outcome, and the weight of its update likewise."""

    def forge(reply: Any) -> Any:
        first, *others = reply.outcomes
        items = list(reply.uploads.contributions)
        if items and "n_samples" in numbers:
            items[0] = items[0].replace(n_samples=numbers["n_samples"])
        outcomes = (first.model_copy(update=numbers), *others)
        return reply.replace(
            outcomes=outcomes, uploads=reply.uploads.model_copy(update={"contributions": tuple(items)})
        )

    return forge


def weighing(n_samples: int) -> Forge:
    """Changes the weight of the first update, but not the outcome of its visit."""

    def forge(reply: Any) -> Any:
        first, *others = reply.uploads.contributions
        items = (first.replace(n_samples=n_samples), *others)
        return reply.replace(uploads=reply.uploads.model_copy(update={"contributions": items}))

    return forge


@pytest.mark.matrix(5)
@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (claiming(n_samples=90), "90 training samples, it has 30"),
        (claiming(n_samples=2**48), f"{2**48} training samples, it has 30"),
        (weighing(90), "an update of 90 training samples, it has 30"),
        (claiming(n_trained=2**48), f"{2**48} samples passed through training, its task allows 30"),
        (claiming(own=Score(n=1, n_correct=1, loss_sum=1.0, states={"f1": (1,)})), "with states of ['f1'], not of []"),
    ],
    ids=["samples", "samples beyond every weight", "weight", "trained", "states"],
)
async def test_a_device_that_claims_other_numbers_fails_alone(tmp_path: Path, forge: Forge, message: str) -> None:
    layout: dict[str, Any] = {"agent_devices": (1,) * 4, "n_edges": 2}
    honest = await ran(SPEC, **layout)
    done = await run(tmp_path, SPEC, tamper=of_agent(forge), **layout)
    first, second = done.rounds
    (failure,) = first.failures
    assert failure.reason == "wire"
    assert f"device {failure.seat} reports " in failure.detail
    assert message in failure.detail
    assert seats_that(first, "failed") == {failure.seat}
    assert seats_that(first, "used") == {0, 1, 2, 3} - {failure.seat}
    assert seats_that(second, "used") == {0, 1, 2, 3}
    assert first.simulated_s < 2 * honest.rounds[0].simulated_s


async def test_one_device_of_an_agent_that_claims_other_numbers_fails_alone(tmp_path: Path) -> None:
    """With late answers refused, agents hold single updates: one of them is separable from the others."""
    spec = {**SPEC, "num_edges": 1, "num_rounds": 1, "round_deadline_s": 1e6}
    forge = claiming(n_trained=2**48)
    done = await run(tmp_path, spec, tamper=of_agent(forge), agent_devices=(4,), n_edges=1)
    first = done.rounds[0]
    assert seats_that(first, "failed") == {0}
    assert seats_that(first, "used") == {1, 2, 3}
    assert first.simulated_s < 1e6


def heavier(total: Any, weight: float, **more: Any) -> Any:
    """A sum whose fields weigh more."""
    return total.replace(
        means={name: part.replace(weight=weight * part.weight) for name, part in total.means.items()}, **more
    )


def heavier_sum(reply: Any) -> Any:
    total = reply.uploads.partial_sum
    changed = heavier(total, 3, n_samples=3 * total.n_samples)
    return reply.replace(uploads=reply.uploads.model_copy(update={"partial_sum": changed}))


def heavier_field(reply: Any) -> Any:
    changed = heavier(reply.uploads.partial_sum, 3)
    return reply.replace(uploads=reply.uploads.model_copy(update={"partial_sum": changed}))


def longer_link(reply: Any) -> Any:
    link_bytes = dict.fromkeys(reply.uploads.link_bytes, 2**48)
    return reply.replace(uploads=reply.uploads.model_copy(update={"link_bytes": link_bytes}))


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (heavier_sum, "a sum of 3 updates and 270 samples; the tasks of devices"),
        (heavier_field, "delta: a weight of 270, in a sum of 90 samples"),
        (claiming(n_samples=90), "reports 90 training samples, it has 30"),
        (longer_link, f"is to have {2**48} bytes"),
    ],
    ids=["sum", "field", "outcome", "bytes"],
)
async def test_a_sum_weighs_as_much_as_its_visits(tmp_path: Path, forge: Forge, message: str) -> None:
    spec = {**SPEC, "num_edges": 1, "num_devices": 6, "num_rounds": 1, "data": {**SPEC["data"], "n_train": 180}}
    layout: dict[str, Any] = {"agent_devices": (3, 3), "n_edges": 1}
    honest = await ran(spec, **layout)
    done = await run(tmp_path, spec, tamper=of_agent(forge), **layout)
    (first,) = done.rounds
    assert len(seats_that(first, "failed")) == 3
    assert len(seats_that(first, "used")) == 3
    assert all(message in failure.detail for failure in first.failures)
    assert first.simulated_s < 2 * honest.rounds[0].simulated_s


async def test_a_device_cannot_name_a_failure_that_its_edge_decides(tmp_path: Path) -> None:
    """A device that is off by the simulation counts towards no quorum, and lets simulated time pass."""

    def forge(reply: Any) -> Any:
        failure = {"seat": reply.outcomes[0].seat, "edge": 9, "reason": "unavailable", "detail": "asleep"}
        lost = reply.outcomes[0].replace(n_samples=0, n_trained=0, n_steps=0, train=None, failure=failure)
        return reply.replace(outcomes=(lost,), uploads=reply.uploads.model_copy(update={"contributions": ()}))

    done = await run(tmp_path, {**SPEC, "num_rounds": 1}, tamper=of_agent(forge), agent_devices=(1,) * 4, n_edges=2)
    (failure,) = done.rounds[0].failures
    assert failure.seat is not None
    assert (failure.edge, failure.reason) == (f"edge-{failure.seat % 2 + 1}", "wire")
    assert "the failure 'unavailable', which its edge alone decides" in failure.detail


# ---- an edge


def lines_with(**changes: Any) -> Forge:
    """Changes fields of the first visit's line."""

    def forge(reply: Any) -> Any:
        first, *others = reply.lines
        return reply.model_copy(update={"lines": (first.model_copy(update=changes), *others)})

    return forge


def answer_with(**changes: Any) -> Forge:
    return lambda reply: reply.model_copy(update=changes)


def heavier_answer(reply: Any) -> Any:
    total = reply.partial_sum
    changed = heavier(total, 3, n_samples=3 * total.n_samples)
    return reply.model_copy(update={"partial_sum": changed, "n_samples": changed.n_samples})


def heavier_lines(reply: Any) -> Any:
    """Weighs three times as much in the lines, too."""
    lines = tuple(line.replace(n_samples=3 * line.n_samples) for line in reply.lines)
    return heavier_answer(reply).model_copy(update={"lines": lines})


def too_many_failures(reply: Any) -> Any:
    lost = {"seat": 0, "edge": 0, "reason": "error", "detail": "x"}
    return reply.replace(failures=(lost,) * 1000)


def failure_elsewhere(reply: Any) -> Any:
    return reply.replace(failures=({"seat": 0, "edge": 1, "reason": "error", "detail": "x"},))


MORE_HITS = Score(n=2, n_correct=2, loss_sum=1.0, states={"f1": (2, *[0] * 9, 1, 1, *[0] * 8, 1, 1, *[0] * 8)})
"""An F1's state with more hits in a class than it has targets."""

EDGE_FORGERIES = [
    (heavier_answer, "a sum of 2 updates and 180 samples; the tasks in its lines have 2 and 60"),
    (heavier_lines, "device 0 trained on 90 samples, it has 30"),
    (lines_with(n_samples=2**48), f"trained on {2**48} samples, it has 30"),
    (lines_with(energy_j=1e308), "energy_j"),
    (lines_with(simulated_s=1e308), "simulated_s"),
    (answer_with(simulated_s=1e308), "simulated_s"),
    (answer_with(next_on_s=1e308), "next_on_s"),
    (answer_with(figures={"loss": 1e308}), "a figure beyond"),
    (answer_with(figures={"text": "x" * 2**21}), "figures of more than"),
    (lines_with(figures={"x" * 1000: 1.0}), "has more than 100 characters"),
    (too_many_failures, "1000 failures"),
    (failure_elsewhere, "a failure at edge 1"),
    (answer_with(base=(7, 0, 0)), "a state of round 7"),
    (lines_with(own=Score(n=2**40, n_correct=1, loss_sum=1.0)), f"a score `own` of {2**40} predictions, at most"),
    (lines_with(own=Score(n=2, n_correct=3, loss_sum=1.0)), "a score `own` with 3 of 2 predictions correct"),
    (lines_with(own=Score(n=2, n_correct=1, loss_sum=1.0)), "with states of [], not of ['f1']"),
    (lines_with(received=MORE_HITS), "a state of f1 that cannot be that of 2 predictions"),
    (answer_with(received=MORE_HITS), "the edge has a score `received` with a state of f1 that cannot be"),
]


@pytest.mark.whole
async def test_an_edge_that_claims_what_cannot_be_loses_its_contribution_and_the_run_goes_on(tmp_path: Path) -> None:
    spec = {**SPEC, "quorum": 0.5, "metrics": ["accuracy", "f1"]}
    async with federation(tmp_path, agent_devices=(1,) * 4, n_edges=2) as fed:
        for number, (forge, message) in enumerate(EDGE_FORGERIES):
            fed.router.tamper = of_edge(forge)
            info = await fed.run({**spec, "num_rounds": 1 if number else 2})
            first = await fed.round(info.run, 1)
            (failure,) = first.failures
            assert (failure.edge, failure.reason) == ("edge-1", "wire"), message
            assert message in failure.detail
            assert seats_that(first, "used") == {1, 3}, message
            assert info.simulated_s < 1e6, message
            if info.num_rounds > 1:
                assert seats_that(await fed.round(info.run, 2), "used") == {0, 1, 2, 3}


# ---- texts

LONG = "x" * 3_000_000


@pytest.mark.whole
async def test_a_device_cannot_fill_the_records_with_the_text_of_its_failure(tmp_path: Path) -> None:
    def forge(reply: Any) -> Any:
        first, seat = reply.outcomes[0], reply.outcomes[0].seat
        failure = Failure.model_construct(seat=seat, edge=seat % 2, reason=LONG, detail=LONG)
        zero = {"n_samples": 0, "n_trained": 0, "n_steps": 0, "train": None, "failure": failure}
        uploads = reply.uploads.model_copy(update={"contributions": ()})
        return reply.model_copy(update={"outcomes": (first.model_copy(update=zero),), "uploads": uploads})

    done = await run(tmp_path, {**SPEC, "num_rounds": 1}, tamper=of_agent(forge), agent_devices=(1,) * 4, n_edges=2)
    (failure,) = done.rounds[0].failures
    assert (len(failure.reason), len(failure.detail)) == (LABEL_CHARS, DETAIL_CHARS)
    assert failure.detail.startswith("xxx")
    assert done.rounds[0].n_used == 3


@pytest.mark.whole
async def test_an_edge_cannot_fill_the_records_with_texts_of_visits(tmp_path: Path) -> None:
    forge, spec = lines_with(label=LONG, reason=LONG, outcome=LONG), {**SPEC, "quorum": 0.5, "num_rounds": 1}
    done = await run(tmp_path, spec, tamper=of_edge(forge), agent_devices=(1,) * 4, n_edges=2)
    assert len(done.rounds[0].model_dump_json()) < 100_000
