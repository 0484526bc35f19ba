"""The spec's `sync`: staleness weights against their formulas, short forms, and what does not fit together."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import pytest

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.federation.hooks import Mean, ModelState, NoParams, PerClient
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.spec.synchronisation import WEIGHT_STEPS, Staleness
from tests.shared.spec.test_experiment import refusal

SEMI = {"mode": "semi_synchronous", "wanted": 1}


# ---- staleness weights


def test_weights_are_those_of_their_formulas_in_whole_steps() -> None:
    polynomial, hinge = Staleness(name="polynomial", a=0.5), Staleness(name="hinge", a=10, b=6)
    for tau in (0, 1, 2, 6, 7, 8, 15, 99):
        assert Staleness().steps(tau) == 1
        assert polynomial.steps(tau) / polynomial.scale == pytest.approx(1 / math.sqrt(tau + 1), abs=2**-17)
        expected = 1.0 if tau <= 6 else 1 / (10 * (tau - 6) + 1)
        assert hinge.steps(tau) / hinge.scale == pytest.approx(expected, abs=2**-17)
    assert (polynomial.steps(0), hinge.steps(6), Staleness().scale) == (WEIGHT_STEPS, WEIGHT_STEPS, 1)


@pytest.mark.parametrize("staleness", [{"name": "polynomial", "a": 1000}, {"name": "hinge", "a": 1000, "b": 0}])
def test_no_update_is_so_old_that_it_has_no_weight(staleness: dict[str, Any]) -> None:
    assert Staleness.model_validate(staleness).steps(10**6) == 1


def test_a_tier_waits_for_all_unless_the_spec_says_otherwise_and_modes_and_weights_have_short_forms() -> None:
    plain = parse_spec({}).sync
    assert [(name, sync.mode, sync.asynchronous) for name, sync in plain.tiers.items()] == [
        ("devices", "synchronous", False),
        ("edges", "synchronous", False),
    ]
    assert parse_spec({"sync": {"edges": {}, "devices": "synchronous"}}).sync == plain
    short = parse_spec({"sync": {"edges": "asynchronous"}}).sync.edges
    assert (short.mode, short.asynchronous, short.buffer, short.staleness) == ("asynchronous", True, 1, Staleness())
    named = parse_spec({"sync": {"edges": {"mode": "asynchronous", "staleness": "hinge"}}}).sync.edges
    assert named.staleness == Staleness(name="hinge")


# ---- what does not fit


@pytest.mark.parametrize(
    ("sync", "field"),
    [
        ({"edges": "eventual"}, "sync.edges.mode"),
        ({"edges": {"mode": "asynchronous", "buffer": 0}}, "sync.edges.buffer"),
        ({"edges": {"mode": "asynchronous", "buffer": "most"}}, "sync.edges.buffer"),
        ({"edges": {"mode": "asynchronous", "staleness": "old"}}, "sync.edges.staleness.name"),
        ({"edges": {"mode": "asynchronous", "staleness": {"name": "polynomial", "a": 0}}}, "sync.edges.staleness.a"),
        ({"edges": {"mode": "asynchronous", "staleness": {"name": "hinge", "b": -1}}}, "sync.edges.staleness.b"),
        ({"edges": {"mode": "semi_synchronous", "wanted": 0}}, "sync.edges.wanted"),
        ({"edges": {"mode": "semi_synchronous", "deadline_s": 0}}, "sync.edges.deadline_s"),
        ({"edges": {"mode": "asynchronous", "concurrency": 2}}, "sync.edges.concurrency"),
        ({"devices": {"mode": "asynchronous", "concurrency": 0}}, "sync.devices.concurrency"),
        ({"devices": {"mode": "asynchronous", "wanted": 2}}, "sync.devices.wanted"),
        ({"cloud": "asynchronous"}, "sync.cloud"),
    ],
)
def test_a_value_beyond_its_bounds_is_refused_by_its_path(sync: dict[str, Any], field: str) -> None:
    error = refusal({"sync": sync})
    assert error.field is not None
    assert error.field.startswith(field)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sync": {"edges": {"buffer": 2}}}, "sync.edges.buffer has no meaning with mode: synchronous"),
        ({"sync": {"edges": {"wanted": 2}}}, "sync.edges.wanted has no meaning with mode: synchronous"),
        ({"sync": {"edges": {**SEMI, "buffer": 2}}}, "sync.edges.buffer has no meaning with mode: semi_synchronous"),
        ({"sync": {"devices": {"staleness": "hinge"}}}, "sync.devices.staleness has no meaning with mode: synchronous"),
        ({"sync": {"devices": {"concurrency": 2}}}, "sync.devices.concurrency has no meaning with mode: synchronous"),
        ({"sync": {"edges": "semi_synchronous"}}, "sync.edges: semi_synchronous needs wanted, deadline_s, or both"),
        (
            {"sync": {"edges": {"mode": "asynchronous", "wanted": 2}}},
            "sync.edges.wanted and deadline_s need mode: semi_synchronous; asynchronous has a buffer",
        ),
        ({"num_edges": 2, "sync": {"edges": {**SEMI, "wanted": 3}}}, "sync.edges.wanted: 3 of 2 edges"),
        ({"num_edges": 2, "sync": {"edges": {"mode": "asynchronous", "buffer": 3}}}, "sync.edges.buffer: 3 of 2 edges"),
        ({"sync": {"edges": SEMI}, "clock": "real"}, "clock real needs sync.edges: synchronous"),
        ({"sync": {"edges": "asynchronous"}, "client": "edge"}, "client edge needs sync.edges: synchronous"),
        ({"sync": {"devices": "semi_synchronous"}}, "sync.devices: semi_synchronous needs round_deadline_s, or over"),
        ({"sync": {"devices": "asynchronous"}, "round_deadline_s": 9}, "round_deadline_s 9.0 needs sync.devices: sync"),
        ({"sync": {"devices": "asynchronous"}, "twins": True}, "twins True needs sync.devices: synchronous"),
        (
            {"sync": {"devices": "asynchronous"}, "schedule": "finish_time", "overrun": 2},
            "schedule finish_time needs sync.devices: synchronous",
        ),
        (
            {
                "sync": {
                    "devices": {"mode": "asynchronous", "staleness": "polynomial"},
                    "edges": {**SEMI, "staleness": "hinge"},
                }
            },
            "sync.edges.staleness: a sum that edges have weighted by staleness cannot be weighted once more",
        ),
        (
            {"sync": {"devices": {"mode": "asynchronous", "staleness": "polynomial"}}, "edge_upload": "mean"},
            "edge_upload: mean does not tell by how much devices' staleness shortens the step",
        ),
        ({"eval_every": 2, "eval_every_s": 9}, "eval_every_s and eval_every: a run is evaluated by simulated seconds"),
        ({"sync": {"edges": "asynchronous"}, "algorithm": "fedmix"}, "fedmix is not defined for sync.edges: asynch"),
        (
            {"sync": {"edges": {**SEMI, "staleness": "hinge"}}, "algorithm": "scaffold"},
            "sync.edges.staleness: scaffold adds up changes, whose weights have to be equal",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused_and_named(spec: dict[str, Any], message: str) -> None:
    found = refusal(spec)
    assert message in found.detail
    assert found.field == message.split(" ")[0].rstrip(":") or message.startswith(spec.get("algorithm", "-"))


class Each(Record):
    """An update that is kept for each client."""

    delta: Annotated[ModelState, Mean(weight="samples")]
    seen: Annotated[dict[str, int], PerClient()]


@pytest.mark.parametrize("tier", ["devices", "edges"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"report": NoParams}, "devices send reports first"),
        ({"update": Each}, "seen of its updates come once per client"),
    ],
    ids=["reports", "per client"],
)
def test_reports_and_fields_of_each_client_need_tiers_that_wait_whatever_an_algorithm_declares(
    tier: str, changes: dict[str, Any], why: str
) -> None:
    spec = parse_spec({"sync": {tier: "asynchronous"}})
    algorithm = replace(load_algorithm("fedavg"), **changes)
    with pytest.raises(BadInput) as refused:
        algorithm.check_spec(spec)
    assert f"fedavg needs tiers that wait for all: {why}" in refused.value.detail
    assert refused.value.field == f"sync.{tier}"
    algorithm.check_spec(parse_spec({}))


@pytest.mark.parametrize(
    "spec",
    [
        {"sync": {"devices": "semi_synchronous"}, "round_deadline_s": 9.0},
        {"sync": {"devices": "semi_synchronous"}, "overselection": 0.5, "select": "random", "fraction_train": 0.5},
        {"sync": {"edges": {**SEMI, "deadline_s": 4.5, "staleness": "polynomial"}}, "num_edges": 1},
        {"sync": {"edges": {"mode": "asynchronous", "buffer": "all"}}, "eval_every_s": 60.0},
        {"sync": {"edges": {**SEMI, "staleness": "hinge"}, "devices": {"mode": "asynchronous"}}},
        {"sync": {"edges": SEMI, "devices": "asynchronous"}, "algorithm": "scaffold"},
        {
            "edge_rounds": 2,
            "sync": {
                "devices": {"mode": "asynchronous", "staleness": "polynomial"},
                "edges": {"mode": "asynchronous", "staleness": "hinge"},
            },
        },
    ],
)
def test_what_fits_is_taken(spec: dict[str, Any]) -> None:
    assert parse_spec(spec).sync == parse_spec({**spec, "name": "other"}).sync
