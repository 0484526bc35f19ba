"""What is wrong with an answer, or goes wrong with a request, costs no more visits than it must."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import torch

from edge_server.rounds.exchange import Exchange
from edge_server.rounds.wave import AgentReplies, Deadline, Dispatch
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.aggregation import Accumulator
from shared.federation.messages import Contribution, Outcome, Task, Uploads, VisitAnswer, WaveId
from shared.wire import codec
from shared.wire.compression import Coded, Ternary
from tests.federation import AGENT_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import resolved

DATA = {"name": "digits", "n_train": 40, "n_test": 10}


def test_a_scale_that_is_not_finite_fails_only_its_own_seat() -> None:
    experiment = resolved(data=DATA, num_devices=3, num_edges=1, compression={"up": "ternary"})
    kind: Any = experiment.algorithm.update

    def delta(scale: float) -> TensorMap:
        def coded(tensor: Tensor) -> Tensor:
            digits = torch.zeros(-(-tensor.numel() // 4), dtype=torch.uint8)
            return Coded(Ternary, tensor.shape, (digits, torch.tensor(scale)))

        return {name: coded(tensor) for name, tensor in experiment.shapes.items()}

    scales = {0: 1.0, 1: math.nan, 2: 0.5}
    held = [len(experiment.seat(seat).train) for seat in scales]
    updates = [Contribution[Any](seat=s, n_samples=held[s], update=kind(delta=delta(scales[s]))) for s in scales]
    outcomes = tuple(Outcome[Any](seat=seat, kind="train") for seat in scales)
    answer = VisitAnswer[Any, Any](outcomes=outcomes, uploads=Uploads[Any](contributions=tuple(updates)))
    read = codec.decode(
        experiment.wire_types.visit_answer, codec.encode(answer).join(), model=experiment.shapes, n_seats=len(scales)
    )

    order = SimpleNamespace(n_clients=3, edge=0, phase="train")
    accumulator, replies = Accumulator(kind, experiment.fixed_point), AgentReplies()
    dispatch = Dispatch(WaveId(run_id="r", round_no=1), dict.fromkeys(scales, Task()), [])
    exchange = Exchange(experiment, cast("Any", order), dispatch, replies, accumulator, Deadline())
    exchange.add_singles(cast("Any", read).uploads.contributions)
    assert replies.used == {0, 2}
    assert [(failure.seat, failure.reason) for failure in replies.failures] == [(1, "wire")]
    name = next(iter(experiment.shapes))
    place = f"uploads.contributions.1.update.delta.{name}"
    assert replies.failures[0].detail == f"{place}: a tensor coded by ternary: the scale is nan"
    assert (accumulator.n_updates, accumulator.n_samples) == (2, held[0] + held[2])


async def test_an_error_that_nobody_expected_costs_the_visits_of_one_agent_and_is_recorded(fed: Federation) -> None:
    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if (request.url.path, request.url.port) == ("/visits", AGENT_PORT + 1):
            raise ZeroDivisionError("a bug")
        return await pass_on()

    fed.router.tamper = tamper
    info = await fed.run(small_spec(num_rounds=1))
    first = await fed.round(info.run, 1)
    (lost,) = [row.seat for row in (await fed.seats(info.run)).seats if row.agent == fed.agent_id(1)]
    assert [(failure.seat, failure.reason, failure.detail) for failure in first.failures] == [
        (lost, "error", "ZeroDivisionError: a bug")
    ]
    assert first.n_used == 5
