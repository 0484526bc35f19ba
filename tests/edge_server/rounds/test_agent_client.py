"""An invalid compressed tensor fails the update that holds it, and no other of the same answer."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import torch

from edge_server.rounds.agent_client import AgentClient, _Exchange
from edge_server.rounds.wave import AgentReplies, Deadline, Dispatch
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.aggregation import Accumulator
from shared.federation.messages import Contribution, Outcome, Task, Uploads, VisitAnswer, WaveId
from shared.wire import codec
from shared.wire.compression import Coded, Ternary
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
    updates = [Contribution[Any](seat=s, n_samples=5, update=kind(delta=delta(scales[s]))) for s in scales]
    outcomes = tuple(Outcome[Any](seat=seat, kind="train") for seat in scales)
    answer = VisitAnswer[Any, Any](outcomes=outcomes, uploads=Uploads[Any](contributions=tuple(updates)))
    read = codec.decode(
        experiment.wire_types.visit_answer, codec.encode(answer).join(), model=experiment.shapes, n_seats=len(scales)
    )

    order = SimpleNamespace(n_clients=3, edge=0, phase="train")
    client = AgentClient(experiment, *cast("Any", (order, *(None,) * 9)))
    accumulator, replies = Accumulator(kind, experiment.fixed_point), AgentReplies()
    dispatch = Dispatch(WaveId(run_id="r", round_no=1), dict.fromkeys(scales, Task()), [])
    client._add_uploads(_Exchange(dispatch, replies, accumulator, Deadline()), cast("Any", read).uploads)
    assert replies.used == {0, 2}
    assert [(failure.seat, failure.reason) for failure in replies.failures] == [(1, "wire")]
    name = next(iter(experiment.shapes))
    place = f"uploads.contributions.1.update.delta.{name}"
    assert replies.failures[0].detail == f"{place}: a tensor coded by ternary: the scale is nan"
    assert (accumulator.n_updates, accumulator.n_samples) == (2, 10)
