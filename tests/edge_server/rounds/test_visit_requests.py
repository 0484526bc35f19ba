"""The visits that a wave requests of seats."""

from __future__ import annotations

from typing import Any

from edge_server.rounds.simulated_clock import EdgeClock, SimulatedFaults
from edge_server.rounds.visit_requests import simulated_failures, visit_requests
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


def test_each_simulated_fault_is_a_failure_with_its_reason() -> None:
    faults = SimulatedFaults(off={4: None}, busy={1: 7.5}, dropped={2: 0.25})
    found = [(failure.seat, failure.reason, failure.detail) for failure in simulated_failures(faults, 0, 3.0)]
    assert found == [
        (4, "unavailable", "the device is off at second 3.000"),
        (2, "dropped", "the device dropped after 25.0% of its work"),
        (1, "busy", "still at work on its late update until second 7.500"),
    ]
