"""Simulated seconds, bytes and joules, compared with values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from shared.core.randomness import stream_seed
from shared.simulation import REFERENCE_FLOPS, Link, Normal, Profile, Seeds, Uniform
from shared.simulation.cost_model import Cost, LinkUse, broken_off, drop_share, link_cost, transfer_s, visit_cost

SLOW = Profile(name="slow", compute_sps=100, up_bps=8_000, down_bps=80_000, latency_s=0.5)
USE = LinkUse(down_bytes=10_000, up_bytes=1_000)


def visit(number: int) -> Seeds:
    """Returns the streams of one visit."""
    return lambda purpose: stream_seed(f"{number}|{purpose}")


def cost(profile: Profile = SLOW, use: LinkUse = USE, n: float = 250, number: int = 0, latency_s: float = 0.5) -> Cost:
    return visit_cost(profile, latency_s, use, n * REFERENCE_FLOPS, visit(number))


def test_a_transfer_is_latency_and_bits_over_bandwidth_and_none_costs_nothing() -> None:
    assert transfer_s(1000, 8_000, 0.5) == 1.5
    assert transfer_s(0, 8_000, 0.5) == 0


def test_a_visit_receives_trains_and_sends_and_without_an_upload_pays_one_way() -> None:
    assert cost() == Cost(down_s=1.5, compute_s=2.5, up_s=1.5)
    assert cost().simulated_s == 5.5
    assert cost(use=LinkUse(down_bytes=10_000), n=0) == Cost(down_s=1.5)


def test_an_update_that_waits_for_its_link_has_sent_nothing_until_then() -> None:
    waits = replace(cost(), queue_s=3.0)
    assert waits.simulated_s == 8.5
    assert broken_off(SLOW, waits, USE, 0.0, 6.0) == (Cost(1.5, 2.5, 0.0, queue_s=2.0), LinkUse(down_bytes=10_000))
    done, use = broken_off(SLOW, waits, USE, 0.0, 7.75)
    assert (done.queue_s, done.up_s, use.up_bytes) == (3.0, 0.75, 500)
    assert (waits + waits).queue_s == 6.0


@pytest.mark.parametrize(
    ("at_s", "seconds", "moved", "work"),
    [
        (0.0, (0, 0, 0), (0, 0), 0),
        (0.6, (0.6, 0, 0), (4_000, 0), 0),  # of 1.5 s of receiving
        (2.5, (1.5, 1, 0), (10_000, 0), 0.4),  # of 2.5 s of work
        (4.3, (1.5, 2.5, 0.3), (10_000, 200), 1),  # of 1.5 s of sending
        (5.5, (1.5, 2.5, 1.5), (10_000, 1_000), 1),
        (99, (1.5, 2.5, 1.5), (10_000, 1_000), 1),
    ],
)
def test_an_interrupted_visit_counts_up_to_its_interruption(
    at_s: float, seconds: tuple[float, ...], moved: tuple[int, int], work: float
) -> None:
    frugal = SLOW.replace(j_per_flop=1e-9, j_per_byte_up=3e-6, j_per_byte_down=1e-6)
    flops = 250 * REFERENCE_FLOPS
    done, use = broken_off(frugal, cost(frugal), USE, flops, at_s)
    assert (done.down_s, done.compute_s, done.up_s) == pytest.approx(seconds)
    assert (use.down_bytes, use.up_bytes) == moved
    assert cost().energy_j == 0
    assert cost(frugal).energy_j == pytest.approx(flops * 1e-9 + 1_000 * 3e-6 + 10_000 * 1e-6)
    assert done.energy_j == pytest.approx(work * flops * 1e-9 + moved[0] * 1e-6 + moved[1] * 3e-6)


def test_jitter_is_uniform_around_the_latency_and_drawn_for_each_direction() -> None:
    shaky = SLOW.replace(jitter_s=0.2)
    costs = [cost(shaky, number=number) for number in range(500)]
    for direction in ("down_s", "up_s"):
        found = [getattr(one, direction) - 1 for one in costs]  # without the transfer time of the bits
        assert stats.kstest(found, stats.uniform(0.3, 0.4).cdf).pvalue > 1e-3
    assert abs(stats.pearsonr([c.down_s for c in costs], [c.up_s for c in costs]).statistic) < 0.15


def test_jitter_makes_no_transfer_faster_than_its_bits() -> None:
    shaky = SLOW.replace(jitter_s=2.0)
    found = [cost(shaky, number=number, latency_s=0.5).down_s for number in range(100)]
    assert min(found) == 1.0
    assert max(found) > 3.0


def test_a_delay_is_drawn_for_every_visit_and_is_part_of_its_work() -> None:
    late = SLOW.replace(delay_s=Normal(mean=100, sd=1))
    found = [cost(late, number=number).compute_s - 2.5 for number in range(500)]
    assert stats.kstest(found, stats.norm(100, 1).cdf).pvalue > 1e-3
    half = visit_cost(late, 0.5, USE, 125 * REFERENCE_FLOPS, visit(3), share=0.5)
    assert half.compute_s == pytest.approx(cost(late, number=3).compute_s / 2)


def test_a_links_delay_is_part_of_sending() -> None:
    late = SLOW.replace(link_delay_s=Uniform(low=5, high=6))
    found = [cost(late, number=number).up_s - 1.5 for number in range(500)]
    assert stats.kstest(found, stats.uniform(5, 1).cdf).pvalue > 1e-3
    assert cost(late, use=LinkUse(down_bytes=10)).up_s == 0  # nothing is sent


def test_the_same_visit_repeats_its_draws() -> None:
    shaky = SLOW.replace(jitter_s=0.2, delay_s=Normal(mean=3, sd=1), drop_rate=0.5)
    assert cost(shaky, number=7) == cost(shaky, number=7) != cost(shaky, number=8)
    assert drop_share(shaky, visit(7)) == drop_share(shaky, visit(7))


def test_the_share_of_dropped_visits_is_the_dropout_rate() -> None:
    shares = [drop_share(SLOW.replace(drop_rate=0.3), visit(number)) for number in range(1_000)]
    dropped = [share for share in shares if share is not None]
    low, high = stats.binom(1_000, 0.3).interval(0.99)
    assert low <= len(dropped) <= high
    assert stats.kstest(dropped, stats.uniform.cdf).pvalue > 1e-3  # anywhere in the work
    assert not any(drop_share(SLOW, visit(number)) for number in range(1_000))
    assert all(drop_share(SLOW.replace(drop_rate=1), visit(number)) for number in range(1_000))


def test_the_edges_link_carries_both_bodies_and_its_uses_are_added() -> None:
    link = Link(up_bps=8_000, down_bps=16_000, latency_s=1)
    use = LinkUse(down_bytes=1_000, up_bytes=3_000) + LinkUse(down_bytes=1_000)
    assert use == LinkUse(down_bytes=2_000, up_bytes=3_000)
    assert link_cost(link, use, visit(0)) == Cost(down_s=1 + 1, up_s=1 + 3)
