"""Simulated seconds and bytes, by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.costs import LinkSpec, LinkUse, Profile, edge_link_s, transfer_s, visit_s

SLOW = Profile(name="slow", compute_sps=100, up_bps=8_000, down_bps=80_000, latency_s=0.5)


def test_a_transfer_is_latency_and_bits_over_bandwidth() -> None:
    assert transfer_s(1000, 8_000, 0.5) == 1.5


def test_nothing_sent_costs_nothing() -> None:
    assert transfer_s(0, 8_000, 0.5) == 0


def test_a_visit_receives_trains_and_sends() -> None:
    assert visit_s(SLOW, LinkUse(down_bytes=10_000, up_bytes=1_000), n_trained=250) == (0.5 + 1) + 2.5 + (0.5 + 1)


def test_a_visit_that_sends_nothing_back_pays_one_way() -> None:
    assert visit_s(SLOW, LinkUse(down_bytes=10_000), n_trained=0) == 1.5


def test_the_edges_link_carries_both_bodies() -> None:
    link = LinkSpec(up_bps=8_000, down_bps=16_000, latency_s=1)
    assert edge_link_s(link, LinkUse(down_bytes=2_000, up_bytes=3_000)) == (1 + 1) + (1 + 3)


def test_the_use_of_links_adds_up() -> None:
    assert LinkUse(down_bytes=1, up_bytes=2) + LinkUse(down_bytes=10) == LinkUse(down_bytes=11, up_bytes=2)


@pytest.mark.parametrize(
    "field", [{"compute_sps": 0}, {"up_bps": -1}, {"down_bps": float("inf")}, {"latency_s": -0.1}, {"name": "A b"}]
)
def test_a_profile_that_no_device_can_have_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Profile.model_validate(field)
