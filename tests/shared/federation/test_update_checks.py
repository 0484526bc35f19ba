"""Updates that cannot come from their senders are refused before aggregation, after any earlier updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from shared.algorithms.fedmix import Held, Mash
from shared.core.errors import BadInput, WireError
from shared.core.records import Record
from shared.core.tensor_records import Tensor
from shared.federation.aggregation import Accumulator, MeanSum, PartialSum, check_partial_sum, mean_of
from shared.federation.experiment import Experiment
from shared.federation.messages import Task
from shared.federation.registry import all_algorithms, load_algorithm
from shared.federation.update_checks import check_origin, clients_of
from shared.federation.visits.trainer import trainer_for
from shared.training import models
from shared.training.data.channel_statistics import Statistics
from tests.shared.algorithms.conftest import _conv_bn
from tests.shared.algorithms.layouts import resolved

ExperimentOf = Callable[..., Experiment]
PRODUCT = all_algorithms()


@pytest.fixture(scope="module")
def experiment_of() -> ExperimentOf:
    """Experiments of four devices at one edge with 8x8 images, by algorithm."""

    def build(name: str, params: dict[str, Any] | None = None, **more: Any) -> Experiment:
        algorithm = {"name": name, "params": params or {}}
        spec = {"algorithm": algorithm, "data": {"name": "digits", "n_train": 40, "n_test": 10}, "num_devices": 4}
        return resolved(**{**spec, "num_edges": 1, **more})

    return build


def check(experiment: Experiment, seat: int | None, phase: str = "train", **fields: Any) -> None:
    """Checks an update as if a seat had sent it, alone and within a sum, or its edge (`seat` None)."""
    edge = experiment.ctx(phase=phase, round_no=1, n_clients=4, edge=0)
    update = experiment.algorithm.update.model_validate(fields)
    if seat is None:
        check_origin(experiment, edge, update, {edge.at(seat=seat).client_id for seat in range(4)})
        return
    visit = edge.at(seat=seat)
    check_origin(experiment, visit, update, clients_of(visit, [seat]))
    stand_in = stand_in_of(experiment, update)
    check_origin(experiment, visit, stand_in, clients_of(visit, [seat, seat + 1]))


def stand_in_of(experiment: Experiment, update: Record) -> Record:
    """Returns the stand-in for the sum of one update."""
    accumulator = Accumulator(experiment.algorithm.update, experiment.fixed_point)
    accumulator.add(update, 10)
    found = check_partial_sum(accumulator.result(), accumulator.kind, accumulator.fixed_point, model=experiment.shapes)
    assert found is not None
    return found


def zeros(experiment: Experiment, *, without: str = "") -> dict[str, Tensor]:
    """Returns tensors like the model's, all 0 except one."""
    return {name: torch.zeros_like(tensor) for name, tensor in experiment.initial.items() if name != without}


# ---- complete maps


@pytest.mark.parametrize(
    ("algorithm", "field"),
    [
        ("fedavg", "delta"),
        ("scaffold", "delta"),
        ("scaffold", "control"),
        ("feddc", "delta"),
        ("feddc", "moved"),
        ("feddc", "drift"),
        ("per_fedavg", "delta"),
        ("es_afl", "delta"),
    ],
)
@pytest.mark.parametrize("lacking", ["head.bias", "all"])
def test_a_map_that_lacks_tensors_is_refused_with_its_name(
    experiment_of: ExperimentOf, algorithm: str, field: str, lacking: str
) -> None:
    experiment = experiment_of(algorithm)
    seat = None if field == "drift" else 0
    empty = {"choices", "drift"} if seat is not None else set()
    whole: dict[str, Any] = {
        name: zeros(experiment) for name in experiment.algorithm.update.model_fields if name not in empty
    }
    check(experiment, seat, **whole)
    part = {} if lacking == "all" else zeros(experiment, without=lacking)
    first = min(zeros(experiment)) if lacking == "all" else lacking
    with pytest.raises(WireError, match=f"{field} of (device|edge)-0 lacks '{first}'") as refused:
        check(experiment, seat, **{**whole, field: part})
    assert refused.value.field == field


def test_what_an_algorithm_does_not_send_is_refused(experiment_of: ExperimentOf) -> None:
    feddc, scaffold, alone = (
        experiment_of("feddc"),
        experiment_of("scaffold", {"option": "none"}),
        experiment_of("local_sgd"),
    )
    with pytest.raises(WireError, match="drift of device-0 holds"):
        check(feddc, 0, delta=zeros(feddc), moved=zeros(feddc), drift=zeros(feddc))
    with pytest.raises(WireError, match="control of device-0 holds"):
        check(scaffold, 0, delta=zeros(scaffold), control=zeros(scaffold))
    with pytest.raises(WireError, match="delta of device-0 holds"):
        check(alone, 0, delta=zeros(alone))
    check(alone, 0, delta={})


def test_personal_layers_are_not_sent(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("fedper")
    base = {name: tensor for name, tensor in zeros(experiment).items() if not name.startswith("head.")}
    check(experiment, 0, delta=base)
    with pytest.raises(WireError, match=r"delta of device-0 holds 'head\.bias'"):
        check(experiment, 0, delta=zeros(experiment))


def test_layers_of_a_group_must_be_complete(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("dtpfl", client="edge")
    base = {name: tensor for name, tensor in zeros(experiment).items() if not name.startswith("head.")}
    head = {name: tensor for name, tensor in zeros(experiment).items() if name.startswith("head.")}
    check(experiment, None, delta=base, grouped={"0": head})
    with pytest.raises(WireError, match=r"grouped 0 of edge-0 lacks 'head\.bias'"):
        check(experiment, None, delta=base, grouped={"0": {"head.weight": head["head.weight"]}})


# ---- ownership


def test_values_of_other_clients_are_refused(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("fedmix")
    check(experiment, 0, "mash", delta={}, averages={"device-0": mash()})
    for other in ("device-1", "device-999", "edge-0"):
        with pytest.raises(WireError, match=f"averages: a value of '{other}', allowed here: device-0"):
            check(experiment, 0, "mash", delta={}, averages={other: mash()})
    with pytest.raises(WireError, match="averages: a value of 'device-9'"):
        check(experiment, None, "mash", delta={}, averages={"device-9": mash()})


def test_devices_send_no_values_of_an_edge_that_is_the_client(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("dtpfl", client="edge")
    sent = {"layers": {}, "samples": 1}
    check(experiment, None, delta=base_of(experiment), users={"edge-0": sent})
    with pytest.raises(BadInput, match="users: a value of edge-0 would come from each of its workers"):
        check(experiment, 0, delta=zeros(experiment), users={"edge-0": sent})
    with pytest.raises(WireError, match="users: a value of 'edge-1', allowed here: no client"):
        check(experiment, 0, delta=zeros(experiment), users={"edge-1": sent})


def base_of(experiment: Experiment) -> dict[str, Tensor]:
    """Returns all layers except the last."""
    return {name: tensor for name, tensor in zeros(experiment).items() if not name.startswith("head.")}


def test_a_sum_of_no_updates_holds_no_tensors(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("fedavg")
    sums = {"delta": MeanSum(weight=0, sums={"x": torch.zeros(1, dtype=torch.float64)})}
    with pytest.raises(WireError, match="a sum of no updates holds tensors"):
        check_partial_sum(
            PartialSum(n_updates=0, n_samples=0, means=sums, each={}),
            experiment.algorithm.update,
            experiment.fixed_point,
        )


# ---- FedMix's averages


def mash(n: int = 1, size: int = 8, classes: int = 10) -> Mash:
    return Mash(images=torch.zeros(n, 1, size, size), labels=torch.full((n, classes), 1 / classes))


@pytest.mark.parametrize(
    ("images", "labels", "expected"),
    [
        (torch.zeros(3, dtype=torch.int8), torch.full((1, 10), 0.1), "float32 of 4 and 2 dimensions"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.float64), torch.full((1, 10), 0.1), "float32 of 4 and 2 dimensions"),
        (torch.zeros(2, 1, 8, 8), torch.full((1, 10), 0.1), "images are (2, 1, 8, 8), labels (1, 10)"),
        (torch.zeros(0, 1, 8, 8), torch.zeros(0, 10), "images are (0, 1, 8, 8)"),
        (torch.full((1, 1, 8, 8), 1e30), torch.full((1, 10), 0.1), "not from -1 to 1"),
        (torch.zeros(1, 1, 8, 8), torch.full((1, 10), 0.2), "not shares that add up to 1"),
        (torch.zeros(1, 1, 8, 8), torch.tensor([[2.0, -1.0] + [0.0] * 8]), "not shares that add up to 1"),
    ],
)
def test_invalid_averages_are_refused(images: Tensor, labels: Tensor, expected: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Mash(images=images, labels=labels)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (mash(size=9), r"1 of images \(1, 9, 9\) and 10 classes, there can be at most 1 of images \(1, 8, 8\)"),
        (mash(classes=9), "and 9 classes"),
        (mash(2), "2 of images"),
    ],
)
def test_averages_of_other_data_are_refused(experiment_of: ExperimentOf, found: Mash, expected: str) -> None:
    with pytest.raises(WireError, match=f"averages of device-0: .*{expected}"):
        check(experiment_of("fedmix"), 0, "mash", delta={}, averages={"device-0": found})


def test_averages_are_accepted_in_their_phase_only_and_held_ones_from_their_edge_only(
    experiment_of: ExperimentOf,
) -> None:
    experiment = experiment_of("fedmix")
    check(experiment, 0, delta=zeros(experiment), held={"device-0": Held(edge=0, entries=4)})
    with pytest.raises(WireError, match="averages: none are sent in the phase train"):
        check(experiment, 0, delta=zeros(experiment), averages={"device-0": mash()})
    with pytest.raises(WireError, match="held: none are sent in the phase mash"):
        check(experiment, 0, "mash", delta={}, held={"device-0": Held(edge=0, entries=4)})
    with pytest.raises(WireError, match="held of device-0: it is at edge 0, not -5"):
        check(experiment, 0, delta=zeros(experiment), held={"device-0": Held(edge=-5, entries=4)})


# ---- LAFL-CPN's statistics


@pytest.mark.parametrize(
    ("n", "sums", "squares"),
    [
        (10, (5, 5), (25,)),
        (10, (5, 5), (25, 25)),
        (10, (), ()),
        (10, (1,) * 10**4, (1,) * 10**4),
        (10, (2551,), (2551 * 255,)),
        (10, (2550,), (0,)),
        (10, (10,), (2551,)),
        (1, (10**400,), (10**900,)),
        (0, (7,), (7,)),
        (2**54, (0,), (0,)),
    ],
)
def test_statistics_of_no_pixels_are_refused(n: int, sums: tuple[int, ...], squares: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        Statistics(n=n, sums=sums, squares=squares)


def test_statistics_of_other_data_are_refused(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("lafl_cpn")
    check(experiment, 0, delta=zeros(experiment), reported={"device-0": Statistics(n=640, sums=(640,), squares=(640,))})
    for n, channels in ((640, 3), (40 * 64 + 1, 1), (0, 1)):
        statistics = Statistics(n=n, sums=(n,) * channels, squares=(n,) * channels)
        with pytest.raises(WireError, match=f"statistics of device-0: {channels} channels of {n} pixels"):
            check(experiment, 0, delta=zeros(experiment), reported={"device-0": statistics})


# ---- ES-AFL's masks and choices


def choices(experiment: Experiment, changed: dict[str, Any] | None = None, owner: str = "device-0") -> dict[str, Any]:
    """Returns choices that keep half of each layer, with changes."""
    half = {name: n // 2 for name, n in experiment.units.multiply_adds(experiment.shapes).items()}
    return {owner: {"child": True, "n_weights": half, "multiply_adds": half, **(changed or {})}}


def test_a_choice_names_each_layer_and_no_more_than_was_kept(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("es_afl")
    kept = {name: torch.ones_like(tensor) for name, tensor in zeros(experiment).items()}
    check(experiment, 0, delta=zeros(experiment), mask=kept, choices=choices(experiment))
    for figure in ("n_weights", "multiply_adds"):
        for value, expected in (
            ({}, "not those of the model's layers, see 'features.1'"),
            ({"features.1": 1, "head": 1, "more": 1}, "not those of the model's layers, see 'more'"),
            ({"features.1": 64 * 64 + 1, "head": 1}, "of features.1 are 4097, there can be 4096"),
        ):
            with pytest.raises(WireError, match=f"choices of device-0: {figure} (are )?{expected}") as refused:
                check(experiment, 0, delta=zeros(experiment), mask=kept, choices=choices(experiment, {figure: value}))
            assert refused.value.field == "choices"
    with pytest.raises(WireError, match="choices: a value of 'device-3'"):
        check(experiment, 0, delta=zeros(experiment), mask=kept, choices=choices(experiment, owner="device-3"))


def test_more_weights_than_the_mask_keeps_are_refused_in_a_sum_too(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("es_afl")
    few = {name: torch.zeros_like(tensor) for name, tensor in zeros(experiment).items()}
    few["head.weight"][0] = 1
    many, most = ({"n_weights": {"features.1": 0, "head": n}} for n in (65, 64))
    update: dict[str, Any] = {"delta": zeros(experiment), "mask": few, "choices": choices(experiment, many)}
    visit = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=0).at(seat=0)
    sent = experiment.algorithm.update.model_validate(update)
    for each in (sent, stand_in_of(experiment, sent)):
        with pytest.raises(WireError, match="n_weights of head are 65, there can be 64"):
            check_origin(experiment, visit, each, clients_of(visit, [0]))
    check(experiment, 0, **{**update, "choices": choices(experiment, most)})


def test_masks_match_their_tensors_and_masked_positions_have_no_weight(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of("es_afl")
    delta, kind, fixed_point = zeros(experiment), experiment.algorithm.update, experiment.fixed_point
    half = {name: torch.zeros_like(tensor) for name, tensor in delta.items()}
    half["head.bias"][:5] = 1
    with pytest.raises(WireError, match=r"of delta and mask of device-0 only one holds 'head\.bias'"):
        check(experiment, 0, delta=delta, mask=zeros(experiment, without="head.bias"))
    for forged, expected in (
        (torch.ones(1), "no mask of its shape"),
        (torch.full((10,), 0.5), "other values than 0 and 1"),
    ):
        with pytest.raises(WireError, match=rf"delta head\.bias .*{expected}"):
            Accumulator(kind, fixed_point).add(
                kind.model_validate({"delta": delta, "mask": {**half, "head.bias": forged}}), 10
            )
    accumulator = Accumulator(kind, fixed_point)
    accumulator.add(kind.model_validate({"delta": {**delta, "head.bias": torch.full((10,), 100.0)}, "mask": half}), 30)
    whole = {name: torch.ones_like(tensor) for name, tensor in delta.items()}
    accumulator.add(kind.model_validate({"delta": {**delta, "head.bias": torch.ones(10)}, "mask": whole}), 10)
    mean: Any = mean_of(accumulator.result(), kind, fixed_point, model=experiment.shapes)
    assert mean.delta["head.bias"].tolist() == [75.25] * 5 + [1.0] * 5


# ---- tensors that algorithms send


@pytest.mark.parametrize(("model", "edge_rounds"), [("mlp", 1), ("conv_bn", 2)])
@pytest.mark.parametrize("name", PRODUCT)
def test_updates_hold_the_tensors_named_by_sends(
    experiment_of: ExperimentOf, name: str, model: str, edge_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the hooks of a visit and an edge, in each phase."""
    monkeypatch.setitem(models.MODELS, "conv_bn", _conv_bn)
    experiment = experiment_of(name, **{"edge_rounds": edge_rounds, "model": model, **load_algorithm(name).needs})
    cloud, edge, device = experiment.algorithm.cloud, experiment.algorithm.edge, experiment.algorithm.device
    for phase in experiment.phases:
        ctx = experiment.ctx(phase=phase.name, round_no=1, n_clients=4)
        state = cloud.init(ctx, experiment.initial)
        at_edge = ctx.at(edge=0)
        begun = edge.begin(at_edge, edge.init(at_edge), cloud.broadcast(ctx, state, 0, experiment.population.seats))
        visits = [at_edge.at(seat=seat.number) for seat in experiment.population.seats[:2]]
        accumulator = Accumulator(experiment.algorithm.update, experiment.fixed_point)
        for visit, seat in zip(visits, experiment.population.seats, strict=False):
            message = edge.dispatch(at_edge, begun.state, seat)
            work = Task(kind=phase.kind, epochs=1, batch_size=8)
            trainer = trainer_for(experiment, work, seat.train if len(seat.train) else np.arange(10), seat.test)
            update = device.local_update(visit, device.init(visit), message, trainer).update
            assert update is not None
            check_origin(experiment, visit, update, clients_of(visit, [seat.number]))
            accumulator.add(update, 10)
        counted = at_edge.at(n_updates=2, n_samples=20)
        after = edge.aggregate(
            counted,
            begun.state,
            mean_of(accumulator.result(), accumulator.kind, accumulator.fixed_point, model=experiment.shapes),
        )
        own = edge.finish(counted, after).update
        assert (own is not None) == edge.forms_model(at_edge)
        if own is not None:
            check_origin(
                experiment,
                at_edge,
                own,
                {at_edge.at(seat=seat.number).client_id for seat in experiment.population.seats},
            )
