"""Device profiles: names, overrides, mixtures, draws, stragglers; and the catalogue's page."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.federation.spec_parser import parse_spec
from shared.simulation import REFERENCE_FLOPS, Normal, OnOff, Pareto, Profile, Seeds, apportioned, link_of, profiles_of
from shared.simulation.__main__ import tables
from shared.simulation.availability import is_on
from shared.simulation.cost_model import LinkUse, visit_cost
from shared.simulation.profile_catalogue import DEVICES, LINKS, PROFILES
from shared.spec.experiment import ExperimentSpec
from shared.training.flops import training_flops
from shared.training.models import Design
from strata.spec_files import read_spec

PAGE = Path(__file__).parents[3] / "docs" / "profiles.md"


def streams(seat: str) -> Seeds:
    return lambda purpose: stream_seed(f"0|{seat}|{purpose}")


def profiles(n: int = 10, first: int | None = None, **devices: Any) -> list[Profile]:
    spec = parse_spec({"devices": devices}).devices
    return list(map(profiles_of(spec, n if first is None else first, n, streams), range(n)))


# ---- the catalogue


def test_the_page_shows_the_catalogue() -> None:
    assert tables() in PAGE.read_text(encoding="utf-8"), "python -m shared.simulation prints the page's table"


def test_the_reference_models_operations_are_those_of_the_constant() -> None:
    assert training_flops(Design("cnn_mnist", (1, 28, 28), 10)) == REFERENCE_FLOPS


def test_a_devices_samples_and_energy_follow_from_its_operations_and_its_power() -> None:
    for name, entry in DEVICES.items():
        profile = PROFILES[name]
        assert profile.compute_sps * REFERENCE_FLOPS == pytest.approx(entry.flops)
        assert profile.j_per_flop * entry.flops == pytest.approx(entry.watts)
        assert profile.up_bps == LINKS[entry.link].link.up_bps


# ---- names and overrides


def test_a_profile_name_sets_all_figures_and_an_override_replaces_one() -> None:
    assert profiles(3) == [Profile()] * 3
    assert (Profile().name, Profile().compute_sps, Profile().up_bps, Profile().down_bps) == ("standard", 500, 2e7, 1e8)
    assert profiles(1, profile="jetson") == [PROFILES["jetson"]]
    (found,) = profiles(1, profile={"name": "jetson", "up_bps": 3e6, "label": "mine"})
    assert found == PROFILES["jetson"].replace(up_bps=3e6, name="mine")


def test_another_link_replaces_all_figures_of_the_link() -> None:
    (found,) = profiles(1, profile={"name": "raspberry_pi", "link": "lte", "latency_s": 0.5})
    lte = LINKS["lte"].link
    assert (found.up_bps, found.down_bps, found.j_per_byte_up) == (lte.up_bps, lte.down_bps, lte.j_per_byte_up)
    assert (found.latency_s, found.compute_sps) == (0.5, PROFILES["raspberry_pi"].compute_sps)


@pytest.mark.parametrize(
    "profile",
    [
        {"latency_s": 1e15, "jitter_s": 1e15},
        {"latency_s": {"name": "pareto", "shape": 0.1, "scale": 1e9}},
        {"compute_sps": 1e-6, "up_bps": 1e-6, "delay_s": 1e15},
        {
            "compute_sps": {"name": "normal", "mean": 0, "sd": 1e-9},
            "down_bps": {"name": "uniform", "low": 1, "high": 2},
        },
        {"availability": {"name": "on_off", "mean_on_s": 1e-3, "mean_off_s": 1e12}},
    ],
)
def test_every_valid_spec_gives_finite_seconds(profile: dict[str, Any]) -> None:
    for number, found in enumerate(profiles(50, profile=profile, straggler_ratio=0.5, straggler_slowdown=1e6)):
        cost = visit_cost(found, found.latency_s, LinkUse(down_bytes=10**9, up_bytes=10**9), 1e15, lambda what: 5)
        assert math.isfinite(cost.simulated_s)
        assert is_on(found.availability, number, cost.simulated_s, lambda what: 5) in (True, False)


@pytest.mark.parametrize(
    ("devices", "field", "message"),
    [
        ({"profile": "fone_low"}, "profile", "did you mean 'phone_low'"),
        ({"profile": {"link": "ltee"}}, "profile", "did you mean 'lte'"),
        ({"profile": {"upbps": 1}}, "profile.upbps", "did you mean 'up_bps'"),
        ({"profile": {"compute_sps": 0}}, "profile.compute_sps", "must be at least 1e-06"),
        ({"profile": {"compute_sps": {"name": "uniform", "low": 0, "high": 1}}}, "profile.compute_sps", "at least"),
        (
            {"profile": {"compute_sps": {"name": "pareto", "shpe": 1, "scale": 1}}},
            "profile.compute_sps.shpe",
            "did you mean 'shape'",
        ),
        ({"profile": {"drop_rate": 1.1}}, "profile.drop_rate", "at most 1"),
        ({"profile": {"availability": "allways"}}, "profile.availability", "did you mean 'always'"),
        (
            {"profile": {"availability": {"name": "on_off", "mean_on_s": 1, "mean_of_s": 1}}},
            "profile.availability.mean_of_s",
            "did you mean 'mean_off_s'",
        ),
        ({"profiles": [{"profile": "jetson", "share": 0.5}]}, None, "add up to 0.5, not to 1"),
        ({"profiles": [{"profile": "jetsn", "share": 1}]}, "profiles.0.profile", "did you mean 'jetson'"),
        ({"profile": "jetson", "profiles": [{"profile": "jetson", "share": 1}]}, None, "either `profile`"),
        ({"straggler_ratio": 1.5}, "straggler_ratio", "at most 1"),
        ({"straggler_slow": 2}, "straggler_slow", "did you mean 'straggler_slow"),
    ],
)
def test_a_wrong_description_is_refused_with_field_and_cause(devices: Any, field: str | None, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_spec({"devices": devices})
    assert caught.value.field == (f"devices.{field}" if field else "devices")
    assert message in caught.value.detail


def test_an_unknown_link_of_an_edge_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"edge_link\.by_home\.1: unknown link 'fiber'; did you mean 'fibre'"):
        parse_spec({"edge_link": {"by_home": ["lte", "fiber"]}})


def test_a_parsed_spec_is_parsed_again_unchanged() -> None:
    raw = {
        "profiles": [
            {"profile": {"name": "jetson", "delay_s": {"name": "normal", "mean": 3, "sd": 1}}, "share": 0.5},
            {"profile": {"availability": {"name": "on_off", "mean_on_s": 1, "mean_off_s": 2}}, "share": 0.5},
        ],
        "edge_latency_s": 0.5,
    }
    spec = parse_spec({"devices": raw, "edge_link": {"name": "lte", "by_home": ["dsl"]}})
    assert parse_spec(spec.model_dump(mode="json")) == spec
    assert parse_spec(spec.model_dump(mode="json", exclude_none=True)) == spec


def test_a_trace_file_is_read_with_the_spec(tmp_path: Path) -> None:
    (tmp_path / "nights.txt").write_text("0 0 10\n1 10 20\n", encoding="utf-8")
    path = tmp_path / "spec.yaml"
    path.write_text("devices: {profile: {availability: {name: trace, file: nights.txt, period_s: 20}}}\n", "utf-8")
    spec = read_spec(path)
    assert spec.devices.profile is not None
    found = spec.devices.profile.availability
    assert found is not None
    assert found.model_dump() == {"name": "trace", "traces": (((0, 10),), ((10, 20),)), "period_s": 20}
    (tmp_path / "nights.txt").write_text("0 0 ten\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"nights\.txt: line 1 reads '0 0 ten'"):
        read_spec(path)
    (tmp_path / "nights.txt").unlink()
    with pytest.raises(BadInput, match=r"nights\.txt: No such file"):
        read_spec(path)


# ---- mixtures and stragglers


def test_a_mixture_has_exact_counts_in_seeded_order() -> None:
    mixture = [{"profile": "phone_low", "share": 0.7}, {"profile": "phone_high", "share": 0.3}]
    names = [profile.name for profile in profiles(50, profiles=mixture)]
    assert Counter(names) == {"phone_low": 35, "phone_high": 15}
    assert names != sorted(names)
    assert names != sorted(names, reverse=True)
    assert len({names[n % 2 :: 2].count("phone_high") for n in range(2)}) <= 2


def test_counts_are_by_largest_remainder() -> None:
    assert Counter(apportioned([0.5, 0.3, 0.2], 7, 7, 1)) == {0: 4, 1: 2, 2: 1}  # 3.5, 2.1, 1.4
    assert apportioned([0, 1], 3, 3, 1) == [1, 1, 1]


@given(
    shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    n_first=st.integers(1, 40),
    more=st.integers(0, 40),
    seed=st.integers(0, 2**63 - 1),
)
def test_further_seats_do_not_change_others_and_keep_the_shares_approximately(
    shares: list[float], n_first: int, more: int, seed: int
) -> None:
    whole = [share / sum(shares) for share in shares]
    few, many = apportioned(whole, n_first, n_first, seed), apportioned(whole, n_first, n_first + more, seed)
    assert many[:n_first] == few
    for part, share in enumerate(whole):
        assert abs(few.count(part) - share * n_first) < 1
        assert abs(many.count(part) - share * len(many)) < len(shares)


@pytest.mark.parametrize(
    ("slows", "compute", "link"), [(None, 8, 1), ("compute", 8, 1), ("link", 1, 8), ("visit", 8, 8)]
)
def test_stragglers_have_the_given_number_and_are_slower_in_what_is_said(
    slows: str | None, compute: float, link: float
) -> None:
    """A spec that says nothing is that of a run which began before there was a choice: others are resolved first."""
    delays = {"delay_s": 3, "link_delay_s": {"name": "normal", "mean": 2, "sd": 1}, "jitter_s": 0.01}
    profile = {"name": "phone_low", **delays}
    found = profiles(20, profile=profile, straggler_ratio=0.2, straggler_slowdown=8, straggler_slows=slows)
    usual, slow = ([each for each in found if (each.slowdown == 8) is is_slow] for is_slow in (False, True))
    assert (len(usual), len(slow)) == (16, 4)
    assert profiles(20, profile=profile, straggler_ratio=0.2, straggler_slows=slows) == found, "8 is the default"
    use = LinkUse(down_bytes=10**5, up_bytes=10**5)
    one, other = (visit_cost(each, each.latency_s, use, 1e9, streams("seat 1")) for each in (usual[0], slow[0]))
    work_s = 1e9 / REFERENCE_FLOPS / usual[0].compute_sps
    delay_s = 3 * (8 if slows == "visit" else 1)
    assert other.compute_s == pytest.approx(compute * work_s + delay_s)
    assert [other.down_s, other.up_s] == pytest.approx([link * one.down_s, link * one.up_s])
    assert other.energy_j == one.energy_j


def test_the_devices_of_a_run_are_slow_in_whole_tasks_unless_the_spec_says_in_what() -> None:
    devices = parse_spec({"devices": {"straggler_ratio": 0.2}}).devices
    assert devices.resolved(()).straggler_slows == "visit"
    compute = devices.replace(straggler_slows="compute")
    assert compute.resolved(()) is compute
    none = devices.replace(straggler_ratio=0.0)
    assert none.resolved(("standard",)) is none


@pytest.mark.parametrize(
    "devices",
    [
        {"profiles": [{"profile": "phone_low", "share": 0.6}, {"profile": "jetson", "share": 0.4}]},
        {"straggler_ratio": 0.3},
        {"profile": {"compute_sps": {"name": "pareto", "shape": 1.5, "scale": 100}}},
    ],
    ids=str,
)
def test_adding_seats_changes_no_profile(devices: dict[str, Any]) -> None:
    few, many, most = [profiles(n, first=10, **devices) for n in (10, 11, 40)]
    assert few == many[:10] == most[:10]
    assert many == most[:11]


# ---- draws


def test_a_figure_may_be_drawn_for_each_seat() -> None:
    found = profiles(1_000, profile={"compute_sps": {"name": "pareto", "shape": 1.5, "scale": 100}})
    assert stats.kstest([p.compute_sps for p in found], stats.pareto(1.5, scale=100).cdf).pvalue > 1e-3
    assert {p.up_bps for p in found} == {20e6}


def test_figures_of_a_seat_are_drawn_independently() -> None:
    uniform = {"name": "uniform", "low": 1, "high": 2}
    found = profiles(500, profile={"up_bps": uniform, "down_bps": uniform})
    assert abs(np.corrcoef([p.up_bps for p in found], [p.down_bps for p in found])[0, 1]) < 0.15


def test_delays_stay_distributions_until_a_visit() -> None:
    delay = {"name": "normal", "mean": 100, "sd": 1}
    (found,) = profiles(1, profile={"delay_s": delay, "link_delay_s": {"name": "pareto", "shape": 2, "scale": 1}})
    assert (found.delay_s, found.link_delay_s) == (Normal(mean=100, sd=1), Pareto(shape=2, scale=1))
    (found,) = profiles(1, profile={"availability": {"name": "on_off", "mean_on_s": 1, "mean_off_s": 2}})
    assert found.availability == OnOff(mean_on_s=1, mean_off_s=2)


def test_the_first_homes_may_have_their_own_links() -> None:
    spec = parse_spec({"edge_link": {"name": "fibre", "by_home": ["lte", {"name": "dsl", "up_bps": 5e5}]}}).edge_link
    found = [link_of(spec.link_of_edge(home), streams(f"home {home}")) for home in range(3)]
    assert [link.name for link in found] == ["lte", "dsl", "fibre"]
    assert found[0] == LINKS["lte"].link
    assert found[1] == LINKS["dsl"].link.replace(up_bps=5e5)
    drawn = parse_spec({"edge_link": {"up_bps": {"name": "uniform", "low": 1e6, "high": 2e6}}}).edge_link
    speeds = [link_of(drawn.link_of_edge(home), streams(f"home {home}")).up_bps for home in range(300)]
    assert stats.kstest(speeds, stats.uniform(1e6, 1e6).cdf).pvalue > 1e-3
    default = ExperimentSpec().edge_link
    assert link_of(default.link_of_edge(0), streams("home 0")) == LINKS["backhaul"].link
