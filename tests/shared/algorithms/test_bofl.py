"""BOFL: Guo et al., algorithms 1 and 2, equations 2 to 6, through three real tiers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import hamming as scipy_hamming
from sklearn.preprocessing import Binarizer

from shared.algorithms import bofl
from shared.core.tensor_records import TensorMap
from shared.federation.context import Context
from shared.federation.hooks import Verdict
from shared.federation.messages import UploadOrder
from shared.wire import codec
from tests.shared.algorithms import flat, plain_bofl
from tests.shared.algorithms.layouts import Ended, ran, resolved, tried

WIDE = {"phi": 1e6, "omega": 1e6}
NARROW = {"margin": "literal", "phi": 0.0, "omega": 0.0}  # all but the leader are class C
N_PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10
MODEL_BYTES, SIGN_BYTES = 4 * N_PARAMETERS, -(-N_PARAMETERS // 8)
AROUND = 2_000
"""Bounds the bytes of an answer beside its tensors."""


def spec_of(params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    spec = {
        "algorithm": {"name": "bofl", "params": params or {}},
        "data": {"name": "digits", "n_train": 320, "n_test": 80},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "num_devices": 7,
        "num_edges": 2,
        "num_rounds": 3,
        "batch_size": 16,
        "lr": 0.01,
    }
    return {**spec, **more}


def ctx_of(params: dict[str, Any] | None = None, round_no: int = 1) -> Context:
    experiment = resolved(**spec_of(params))
    return experiment.ctx(phase="train", round_no=round_no, n_clients=7, edge=0)


# ---- signs and distances


def random_model(rng: np.random.Generator) -> TensorMap:
    """Returns parameters of both signs with exact zeros, also negative ones."""
    values = rng.choice([-0.0, 0.0, 1e-30, -1e-30, 1.0, -1.0], size=203).astype(np.float32)
    row = torch.from_numpy(values * rng.integers(1, 4, size=203).astype(np.float32))
    return {"b": row[:3], "a.weight": row[3:].reshape(20, 10)}


def plain_row(model: TensorMap) -> np.ndarray[Any, Any]:
    return np.concatenate([model[name].numpy().ravel() for name in ("a.weight", "b")]).reshape(1, -1)


def test_distance_of_packed_signs_is_that_of_scipy_after_scikit_learns_binarizer() -> None:
    rng, ctx = np.random.default_rng(0), ctx_of()
    for _ in range(50):
        one, other = random_model(rng), random_model(rng)
        bits = [Binarizer().transform(plain_row(model))[0] for model in (one, other)]
        packed = [bofl.signs(ctx, model) for model in (one, other)]
        assert [row.numel() for row in packed] == [26, 26]  # 203 / 8
        for row, plain in zip(packed, bits, strict=True):
            assert np.unpackbits(row.numpy(), count=203).tolist() == plain.tolist()
        assert bofl.hamming(*packed) == round(scipy_hamming(*bits) * 203)


def test_buffers_and_the_order_of_names_are_not_compared() -> None:
    ctx = ctx_of()
    ctx = ctx.at(model=replace(ctx.model, buffer_names=frozenset({"mean"})))
    model = random_model(np.random.default_rng(1))
    row = bofl.signs(ctx, model)
    assert torch.equal(bofl.signs(ctx, {"mean": torch.ones(9), **dict(reversed(model.items()))}), row)


# ---- classes, by hand


def flipped(model: TensorMap, first: int, n: int) -> TensorMap:
    """Returns the model with flipped signs at some positions."""
    turned = model["w"].clone()
    turned[first : first + n] *= -1
    return {"w": turned}


def verdicts(ctx: Context, rhos: dict[int, int], *, sigma: int = 10, refusals: dict[int, int] | None = None) -> Any:
    """Returns the admission: seat 0, the leader, is `sigma` from the global model, the others `rhos` from seat 0."""
    start = {"w": torch.ones(200)}
    top = flipped(start, 0, sigma)
    models = {0: top} | {seat: flipped(top, 100, rho) for seat, rho in rhos.items()}
    reports = {
        seat: bofl.Report(accuracy=0.9 if seat == 0 else 0.5, loss=1.0, signs=bofl.signs(ctx, model))
        for seat, model in models.items()
    }
    state = bofl.Environment(start=start, refusals=refusals or {})
    return bofl.ALGORITHM.edge.admit(ctx, state, reports)


def labels(found: dict[int, Verdict]) -> str:
    return " ".join(str(found[seat].label) for seat in sorted(found))


@pytest.mark.parametrize(
    ("params", "rhos", "expected"),
    [
        ({}, (11, 13, 15), "leader A B C"),
        ({}, (12, 14, 16), "leader A B C"),  # the bounds, 1.2 * 10 and 1.4 * 10, belong to their class
        ({"margin": "literal"}, (11, 13, 15), "leader C C C"),
        ({"margin": "literal"}, (2, 4, 5), "leader A B C"),
        ({"margin": "literal", "phi": 0.29, "omega": 0.58}, (2, 3, 6), "leader A B C"),
        ({"phi": 0.6, "omega": 0.7}, (16, 17, 18), "leader A B C"),
    ],
)
def test_three_devices_at_known_distances_are_class_a_b_and_c(
    params: dict[str, Any], rhos: tuple[int, ...], expected: str
) -> None:
    found = verdicts(ctx_of(params), dict(enumerate(rhos, 1))).verdicts
    assert labels(found) == expected
    assert [found[seat].figures["rho"] for seat in range(4)] == [0, *rhos]
    assert {verdict.figures["sigma"] for verdict in found.values()} == {10}
    assert found[0].upload
    assert all(verdict.upload == (verdict.label != "C") for verdict in found.values() if verdict.label != "B")


def test_bounds_do_not_depend_on_rounding() -> None:
    """0.29 * 100 and 1.13 * 100 are a little less than 29 and 113 in floating point."""
    literal, expanded = bofl.Params(margin="literal", phi=0.29), bofl.Params(phi=0.13)
    assert (0.29 * 100 < 29, 1.13 * 100 < 113) == (True, True)
    assert [bofl.class_of(literal, rho, 100) for rho in (29, 30)] == ["A", "B"]
    assert [bofl.class_of(expanded, rho, 100) for rho in (113, 114)] == ["A", "B"]


def test_if_the_leader_has_not_moved_only_equal_models_are_class_a() -> None:
    assert labels(verdicts(ctx_of(), {1: 0, 2: 1}, sigma=0).verdicts) == "leader A C"


def test_refusal_names_the_distance_and_the_bound() -> None:
    found = verdicts(ctx_of(), {1: 15}).verdicts[1]
    assert (found.reason, found.figures) == ("rho 15 is above 14", {"rho": 15, "sigma": 10, "refusals": 1})


@pytest.mark.parametrize(
    "strange", [torch.zeros(3, dtype=torch.uint8), torch.zeros(25), torch.zeros(5, 5, dtype=torch.uint8)]
)
def test_signs_of_another_model_fail_only_their_seat(strange: torch.Tensor) -> None:
    ctx = ctx_of()
    start = {"w": torch.ones(200)}
    ones = {seat: bofl.Report(accuracy=0.5, loss=1.0, signs=bofl.signs(ctx, start)) for seat in (0, 1)}
    reports = ones | {2: bofl.Report(accuracy=1.0, loss=0.0, signs=strange)}
    found = bofl.ALGORITHM.edge.admit(ctx, bofl.Environment(start=start), reports)
    plain = bofl.ALGORITHM.edge.admit(ctx, bofl.Environment(start=start), ones)
    assert found.verdicts[2] == Verdict(upload=False, reason="signs of another model")
    assert {seat: found.verdicts[seat] for seat in ones} == plain.verdicts
    assert (found.state.refusals, found.state.refused) == (plain.state.refusals, plain.state.refused)


def test_an_accuracy_lies_between_0_and_1() -> None:
    with pytest.raises(ValueError, match="less than or equal to 1"):
        bofl.Report(accuracy=7.0, loss=1.0, signs=torch.zeros(1, dtype=torch.uint8))


def test_class_b_uploads_with_probability_one_half_independently_of_other_reports() -> None:
    ctx = ctx_of()
    found = verdicts(ctx, dict.fromkeys(range(1, 1001), 13)).verdicts
    wins = {seat for seat in range(1, 1001) if found[seat].upload}
    assert abs(len(wins) - 500) < 4 * np.sqrt(250)
    assert {found[seat].reason for seat in range(1, 1001) if seat not in wins} == {"class B lost the draw"}
    some = verdicts(ctx, dict.fromkeys(range(5, 500, 3), 13)).verdicts
    assert {seat for seat in some if some[seat].upload} == {0} | (wins & set(range(5, 500, 3)))
    other = verdicts(ctx_of(round_no=2), dict.fromkeys(range(1, 1001), 13)).verdicts
    assert {seat for seat in other if other[seat].upload} - {0} != wins


@pytest.mark.parametrize(
    ("accuracies", "losses", "leader"),
    [((0.5, 0.9, 0.7), (1, 1, 1), 1), ((0.5, 0.9, 0.9), (1, 2, 1), 2), ((0.9, 0.5, 0.9), (1, 0, 1), 0)],
    ids=["accuracy", "loss", "number"],
)
def test_leader_is_the_most_accurate_in_any_order_of_arrival(
    accuracies: tuple[float, ...], losses: tuple[float, ...], leader: int
) -> None:
    ctx, edge = ctx_of(), bofl.ALGORITHM.edge
    start = {"w": torch.ones(16)}
    reports = {
        seat: bofl.Report(accuracy=accuracy, loss=loss, signs=bofl.signs(ctx, flipped(start, seat, 2)))
        for seat, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True))
    }
    for order in permutations(reports):
        found = edge.admit(ctx, bofl.Environment(start=start), {seat: reports[seat] for seat in order})
        assert [seat for seat, verdict in found.verdicts.items() if verdict.label == "leader"] == [leader]
        assert found == edge.admit(ctx, bofl.Environment(start=start), reports)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"leader": 3, "A": 3, "B won": 3, "B lost": 3, "C": 4}),
        ({"count_b": True}, {"leader": 3, "A": 3, "B won": 3, "B lost": 4, "C": 4}),
        ({"refusals": "consecutive"}, {"leader": 0, "A": 0, "B won": 0, "B lost": 3, "C": 4}),
    ],
)
def test_refusals_are_counted_as_the_options_say(params: dict[str, Any], expected: dict[str, int]) -> None:
    """Every seat has been refused three times before."""
    rhos = {1: 11, 2: 15} | dict.fromkeys(range(3, 20), 13)
    found = verdicts(ctx_of(params), rhos, refusals=dict.fromkeys(range(20), 3))
    won = {seat: " won" if found.verdicts[seat].upload else " lost" for seat in range(3, 20)}
    counts = {
        f"{verdict.label}{won.get(seat, '')}": found.state.refusals[seat] for seat, verdict in found.verdicts.items()
    }
    assert counts == expected


# ---- the whole algorithm compared with its formulas


def rows_of(done: Ended) -> dict[tuple[int, int, int], plain_bofl.Row]:
    """Returns the classes and distances of every first wave from the record."""
    return {
        (detail.round_no, row.edge_round, row.seat): plain_bofl.Row(
            str(row.label), row.figures["rho"], row.figures["sigma"], row.figures["refusals"], row.outcome == "used"
        )
        for detail in done.rounds
        for row in detail.seats
        if row.wave == 0
    }


MIXED = {"phi": 0.05, "omega": 0.15, "delta": 2}
OPTIONS: list[dict[str, Any]] = [
    {"margin": "literal", "phi": 0.8, "omega": 1.1},
    {"compare": "update"},
    {"sigma_against": "initial"},
    {"margin": "literal", "phi": 0.3, "omega": 0.6, "sigma_against": "initial"},
    {"weighting": "samples"},
    {"adjust": "train"},
    {"refusals": "consecutive"},
    {"count_b": True},
    {"optimiser": "sgd"},
    {"delta": 1},
    {"phi": 0.0},
    {"omega": 0.2},
]


def mixed_spec(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns a spec of five rounds with devices of every class, of which some are retired."""
    return spec_of({**MIXED, **params}, **{"partition": "iid", "num_rounds": 5, "seed": 1, **more})


@pytest.mark.whole
async def test_classes_counts_and_model_are_those_of_the_formulas() -> None:
    done = await ran(mixed_spec({}), agent_devices=(1,) * 7)
    plain = plain_bofl.bofl(done.experiment)
    assert rows_of(done) == plain.rows
    assert {seat: detail.round_no for detail in done.rounds for seat in detail.retired} == plain.retired
    assert flat.same_bits(done.model, plain.model)
    assert {row.label for row in plain.rows.values()} == {"leader", "A", "B", "C"}
    assert plain.retired


async def test_only_reports_are_sent_before_the_verdict_and_only_admitted_updates_after_it() -> None:
    done = await ran(mixed_spec({}), agent_devices=(1,) * 7)
    asked = [codec.decode(UploadOrder, body) for body in done.tape.of("/uploads")]
    for detail in done.rounds:
        fetched = sorted(seat for order in asked if order.stage.round_no == detail.round_no for seat in order.seats)
        assert fetched == sorted(row.seat for row in detail.seats if row.outcome == "used")
        for row in detail.seats:
            least = SIGN_BYTES + (MODEL_BYTES if row.outcome == "used" else 0)
            assert least < row.up_bytes < least + AROUND
            assert SIGN_BYTES < row.report_bytes < SIGN_BYTES + AROUND
            assert (row.report_bytes == row.up_bytes) == (row.outcome == "refused")
        assert detail.labels == Counter(row.label for row in detail.seats)
        assert detail.report_bytes == sum(row.report_bytes for row in detail.seats)
    answers = [size for path, _, size in done.tape.orders if path == "/visits"]
    assert max(answers) < SIGN_BYTES + AROUND
    assert 32 * SIGN_BYTES - MODEL_BYTES < 32
    assert Counter(row.outcome for detail in done.rounds for row in detail.seats)["refused"] > 5


def as_formulas(spec: dict[str, Any]) -> plain_bofl.Plain:
    """Compares the model and the refusals that the hooks count with the formulas."""
    done = tried(**spec)
    plain = plain_bofl.bofl(done.experiment)
    assert flat.same_bits(done.model, plain.model)
    counts = {int(client.removeprefix("device-")): n for client, n in done.state.refusals.items()}
    assert {seat: n for seat, n in counts.items() if n} == {seat: n for seat, n in plain.refusals.items() if n}
    return plain


@pytest.mark.matrix(2)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: " ".join(f"{k}={v}" for k, v in option.items()))
def test_every_option_follows_its_formula_and_changes_the_result(option: dict[str, Any]) -> None:
    plain, without = as_formulas(mixed_spec(option)), plain_bofl.bofl(resolved(**mixed_spec({})))
    assert plain.rows != without.rows or not flat.same_bits(plain.model, without.model)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "more",
    [
        {"edge_rounds": 2, "num_rounds": 3},
        {"association": "latency"},
        {"partition": {"name": "dirichlet", "alpha": 0.5}},
    ],
    ids=["edge rounds", "latency", "skew"],
)
def test_formulas_hold_in_other_environments(more: dict[str, Any]) -> None:
    as_formulas(mixed_spec({}, **more))


# ---- reductions


async def test_one_environment_of_equal_counts_with_wide_margins_is_fedavg() -> None:
    spec = spec_of({**WIDE, "optimiser": "sgd"}, num_devices=4, num_edges=1, partition="iid", lr=0.1)
    done = await ran(spec, n_edges=1, agent_devices=(2, 2))
    assert {len(seat.train) for seat in done.experiment.population.seats} == {80}
    assert Counter(str(row.label) for detail in done.rounds for row in detail.seats) == {"leader": 3, "A": 9}
    assert flat.distance(done.model, flat.fedavg(done.experiment, 3)) < 1e-6
    assert flat.distance(done.model, done.experiment.initial) > 0.01


def test_wide_margins_weighted_by_samples_are_fedavg_in_any_environments() -> None:
    done = tried(**spec_of({**WIDE, "optimiser": "sgd", "weighting": "samples"}, lr=0.1))
    assert flat.distance(done.model, flat.fedavg(done.experiment, 3)) < 1e-6


def test_several_environments_of_unequal_size_are_a_mean_of_means_and_not_fedavg() -> None:
    done = tried(**spec_of({**WIDE, "optimiser": "sgd"}, lr=0.1, num_rounds=1))
    trained = [flat.local(done.experiment, seat, 1, done.experiment.initial) for seat in range(7)]
    edges = [[seat.number for seat in done.experiment.population.seats if seat.home_edge == home] for home in (0, 1)]
    assert [len(seats) for seats in edges] == [4, 3]
    means = {
        name: torch.stack([torch.stack([trained[s][name].double() for s in seats]).mean(0) for seats in edges]).mean(0)
        for name in done.experiment.initial
    }
    assert flat.distance(done.model, means) < 1e-6
    assert flat.distance(done.model, flat.fedavg(done.experiment, 1)) > 1e-4
