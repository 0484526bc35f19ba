"""The visits that a wave requests of seats."""

from __future__ import annotations

from typing import Any

from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.visit_requests import visit_requests
from shared.federation.hooks.records import Broadcast
from shared.federation.messages import Task
from tests.shared.algorithms.layouts import resolved


def test_seats_with_equal_messages_share_one_object_which_is_encoded_once() -> None:
    data = {"name": "digits", "n_train": 40, "n_test": 10}
    experiment = resolved(data=data, num_devices=4, num_edges=1)
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=4)
    clock = EdgeClock(experiment, 0)
    edge = experiment.algorithm.edge
    state: Any = edge.begin(ctx, edge.init(ctx), Broadcast(model=experiment.initial)).state
    requests = visit_requests(experiment, ctx, state, clock, {}, {seat: Task() for seat in (2, 0, 1)})
    assert [request.seat for request in requests] == [0, 1, 2]
    assert len({id(request.message) for request in requests}) == 1
