"""Random streams: the seed of a seat or edge by round, wave and purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shared.federation.context import Context, NoParams
from shared.spec.experiment import ExperimentSpec

SPEC = ExperimentSpec(seed=7)
CLOUD = Context(spec=SPEC, params=NoParams(), phase="train", round_no=3, n_clients=10)
SEAT = CLOUD.at(edge=1, seat=4)


def test_golden_seeds() -> None:
    """Changing a seed changes every run: 63 bits of sha256 of `seed|actor|round|edge round|wave|purpose`."""
    # printf '7|seat 4|3|0|0|batches' | sha256sum
    assert SEAT.seed("batches") == 0x1ED2F97A0624E298 >> 1
    assert CLOUD.seed("select") == 0x08D2EB7D2D883B03 >> 1


@pytest.mark.parametrize(
    "changes",
    [{"round_no": 4}, {"edge_round": 1}, {"wave": 1}, {"seat": 5}, {"seat": None}, {"spec": ExperimentSpec(seed=8)}],
    ids=str,
)
def test_streams_differ_by_place(changes: dict[str, Any]) -> None:
    assert SEAT.at(**changes).seed("batches") != SEAT.seed("batches")


def test_a_seat_draws_the_same_at_any_edge_and_in_any_phase() -> None:
    assert SEAT.at(edge=0, phase="tune", n_clients=3).seed("batches") == SEAT.seed("batches")


def test_generators_start_at_the_seed_and_do_not_change_the_global_one() -> None:
    state = torch.random.get_rng_state()
    assert SEAT.rng("batches").initial_seed() == SEAT.seed("batches")
    assert torch.equal(torch.rand(3, generator=SEAT.rng("a")), torch.rand(3, generator=SEAT.rng("a")))
    assert SEAT.numpy_rng("a").random() == SEAT.numpy_rng("a").random()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_client_is_the_seat_or_the_edge() -> None:
    assert SEAT.client_id == "device-4"
    assert CLOUD.at(edge=1).client_id == "edge-1"
    assert SEAT.at(spec=ExperimentSpec(client="edge")).client_id == "edge-1"
