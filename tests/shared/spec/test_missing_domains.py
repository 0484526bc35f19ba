"""Without domains that cannot be had: clients close ranks, and what is listed by their numbers goes with them."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.simulation import Trace, part_of
from shared.spec.experiment import ExperimentSpec
from shared.spec.missing_domains import without

FIVE = ("mnist", "mnist_m", "svhn", "synth_digits", "usps")
FAR = [[100.0 * seat + edge for edge in range(5)] for seat in range(5)]
"""Latency of each of five seats to each of five edges."""


def experiment(**changes: Any) -> ExperimentSpec:
    fields = {"data": "digit_domains", "partition": "by_domain", "num_devices": 5, "num_edges": 5, **changes}
    return ExperimentSpec.model_validate(fields)


def test_with_a_set_go_its_clients_and_its_tests() -> None:
    spec = without(experiment(test_on=["union", "svhn"], min_devices=5), ["svhn"])
    assert spec.data.domains == ("mnist", "mnist_m", "synth_digits", "usps")
    assert (spec.num_devices, spec.num_edges, spec.min_devices) == (4, 4, 4)
    assert spec.test_on == ("union",)
    twice = without(experiment(num_devices=7, max_devices=12), ["mnist", "svhn"])
    assert (twice.num_devices, twice.max_devices) == (4, 7)  # mnist has two of seven, three of twelve; svhn one, two
    edges = without(experiment(client="edge", num_devices=10), ["svhn"])
    assert (edges.num_edges, edges.num_devices) == (4, 10)
    assert without(experiment(), []) == experiment()


def test_unseen_sets_that_are_absent_take_no_client() -> None:
    part = {"name": "by_domain", "domains": ["mnist", "svhn"]}
    spec = without(experiment(partition=part, num_devices=2, num_edges=1, test_on=["unseen"]), ["usps"])
    assert (spec.num_devices, spec.test_on) == (2, ("unseen",))
    gone = ["mnist_m", "synth_digits", "usps"]
    spec = without(experiment(partition=part, num_devices=2, num_edges=1, test_on=["unseen"]), gone)
    assert (spec.num_devices, spec.test_on) == (2, ())
    with pytest.raises(BadInput, match=r"mnist, svhn\) none is there"):
        without(experiment(partition=part, num_devices=2, num_edges=1), ["mnist", "svhn"])


def test_what_is_tested_on_goes_with_its_set_whatever_the_partition() -> None:
    spec = without(experiment(partition="iid", test_on=["union", "svhn", "usps"]), ["svhn"])
    assert (spec.test_on, spec.num_devices) == (("union", "usps"), 5)


@pytest.mark.parametrize(
    ("fields", "gone"),
    [
        ({"partition": "iid"}, FIVE),
        ({}, FIVE),
        (
            {"num_devices": 1, "num_edges": 1, "partition": {"name": "by_domain", "domains": ["svhn", "mnist"]}},
            ["svhn"],
        ),
        (
            {
                "num_devices": 1,
                "num_edges": 1,
                "max_devices": 9,
                "data": {"name": "digit_domains", "domains": ["svhn", "usps"]},
            },
            ["svhn"],
        ),
        ({"client": "edge", "num_edges": 2}, ["mnist", "mnist_m"]),
    ],
)
def test_nothing_left_is_refused_by_the_field(fields: dict[str, Any], gone: list[str]) -> None:
    with pytest.raises(BadInput, match="none is there") as refused:
        without(experiment(**fields), gone)
    assert refused.value.field == "data.domains"


def test_losses_and_latencies_of_seats_go_with_them() -> None:
    losses = [
        {"round_no": 1, "seats": [2]},
        {"round_no": 2, "seats": [0, 2, 4], "wave": 1},
        {"round_no": 3, "seats": [9]},
    ]
    spec = without(experiment(losses=losses, devices={"edge_latency_s": FAR}), ["svhn"])
    assert [(loss.round_no, loss.seats, loss.wave) for loss in spec.losses] == [(2, (0, 3), 1)]
    assert spec.devices.edge_latency_s == tuple(tuple(FAR[seat][:4]) for seat in (0, 1, 3, 4))
    one = without(experiment(num_edges=None, devices={"edge_latency_s": FAR}), ["svhn"])
    assert one.devices.edge_latency_s == tuple(tuple(FAR[seat]) for seat in (0, 1, 3, 4))


def test_where_edges_are_the_clients_their_links_workers_and_latencies_go_with_them() -> None:
    losses = [{"round_no": 1, "seats": [4, 5, 7, 8]}]  # a device, and the workers of edges 0, 2 and 3
    links = ["fibre", "dsl", "lte", "wifi"]
    fields = {"client": "edge", "losses": losses, "devices": {"edge_latency_s": FAR}, "edge_link": {"by_home": links}}
    spec = without(experiment(**fields), ["svhn"])
    assert spec.losses[0].seats == (4, 5, 7)
    assert spec.devices.edge_latency_s == tuple(tuple(row[edge] for edge in (0, 1, 3, 4)) for row in FAR)
    assert [link.name for link in spec.edge_link.by_home] == ["fibre", "dsl", "wifi"]


def test_where_the_number_of_clients_is_open_nobody_goes() -> None:
    spec = experiment(num_devices=None, num_edges=None, losses=[{"round_no": 1, "seats": [4]}])
    assert without(spec, ["svhn"]).losses == spec.losses
    few = without(experiment(num_devices=None, num_edges=9, max_devices=9, min_devices=9), ["svhn"])
    assert (few.num_devices, few.max_devices, few.num_edges, few.min_devices) == (None, 7, 7, 7)  # clients 2 and 7 go


@pytest.mark.parametrize("n_listed", [1, 2, 3, 5, 7])
def test_what_clients_take_in_turn_each_still_takes(n_listed: int) -> None:
    """Of 23 clients; with 7 in the list all numbers differ, with 5 the lists repeat together."""
    parts = [(n + 1) / 10 for n in range(n_listed)]
    traces = [[[n, n + 0.5]] for n in range(n_listed)]
    profile = {"name": "standard", "availability": {"name": "trace", "traces": traces}}
    fields = {"num_devices": 23, "num_edges": 1, "test_fraction": parts}
    spec = without(experiment(**fields, devices={"profiles": [{"profile": profile, "share": 1}]}), ["svhn"])
    stay = [client for client in range(23) if FIVE[client % 5] != "svhn"]
    assert spec.num_devices == len(stay)
    (mixed,) = spec.devices.profiles
    when = mixed.profile.availability
    assert isinstance(when, Trace)
    assert spec.test_fraction is not None
    for number, client in enumerate(stay):
        assert part_of(spec.test_fraction, number, lambda purpose: 0, "") == parts[client % n_listed]
        assert when.traces[number % len(when.traces)] == tuple(map(tuple, traces[client % n_listed]))


def test_what_no_longer_fits_is_refused_in_words() -> None:
    """Seven traces that are taken in another order among 28 seats are too long together."""
    trace = [[2 * n, 2 * n + 1] for n in range(1400)]
    profile = {"name": "standard", "availability": {"name": "trace", "traces": [trace] * 7}}
    with pytest.raises(BadInput, match="more than 10000 intervals"):
        without(experiment(num_devices=35, devices={"profile": profile}), ["svhn"])
