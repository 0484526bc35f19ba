"""`vectorised` through three real tiers: agents change no bit, and results are close to the exact path's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.federation.hooks import Elementwise, Training
from shared.federation.hooks.tiers import DeviceHooks
from shared.federation.registry import all_algorithms, load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from shared.training import compute_device
from shared.wire import codec
from tests.federation import small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, federation, ran, resolved, run

WIDTH = {"width": 4}
ON_GPU: Any = pytest.mark.skipif(
    compute_device.cuda_missing() is not None, reason=f"no CUDA: {compute_device.cuda_missing()}"
)
SMALL_NORM = {"name": "vgg_mnist", "width": 0.1}
"""A small model with batch-norm."""
ALGORITHMS: dict[str, Any] = {
    "fedavg": "fedavg",
    "fedprox": {"name": "fedprox", "params": {"mu": 0.5}},
    "scaffold": "scaffold",
    "scaffold I": {"name": "scaffold", "params": {"option": "I"}},
    "fedper": "fedper",
    "fedbn": "fedbn",
    "feddc": "feddc",
    "feddc relative": {"name": "feddc", "params": {"relative_weights": True, "alpha": 0.5}},
    "feddyn": "feddyn",
    "fednova": "fednova",
    "local_sgd": "local_sgd",
}


def unequal(**changes: Any) -> dict[str, Any]:
    """A spec whose devices have different numbers of samples, hence of steps."""
    partition = {"name": "dirichlet", "alpha": 0.5, "min_samples": 5}
    return small_spec(partition=partition, batch_size=10, momentum=0.5, vectorised=WIDTH, **changes)


def digest_of(done: Ended) -> str:
    """Digest of all that the cloud keeps."""
    return codec.encode(done.state).digest()


def scores(done: Ended) -> list[Any]:
    """What each visit reported: samples, and losses before and after its training."""
    rows = [row for detail in done.rounds for row in sorted(detail.seats, key=lambda row: row.seat)]
    return [(row.seat, row.n_samples, row.train_loss, row.received_loss, row.own_loss) for row in rows]


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("name", ["scaffold", *sorted(ALGORITHMS.keys() - {"scaffold"})])
async def test_neither_agents_nor_their_number_change_a_bit(name: str) -> None:
    """One agent has a full stack and one of two places, six agents have a device and three dummies each."""
    spec = unequal(algorithm=ALGORITHMS[name], model=SMALL_NORM if name == "fedbn" else "mlp")
    one, other = [await ran(spec, agent_devices=agents) for agents in ((6,), (1,) * 6)]
    assert len({n_samples for _, n_samples, *_ in scores(one)}) > 2
    assert flat.distance(one.model, one.experiment.initial) > 0 or name in ("local_sgd",)
    assert digest_of(other) == digest_of(one)
    assert other.info.model_sha256 == one.info.model_sha256
    assert scores(other) == scores(one)
    assert other.links() == one.links()


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", ALGORITHMS)
async def test_a_run_is_close_to_the_exact_paths_and_has_its_records(name: str) -> None:
    spec = unequal(algorithm=ALGORITHMS[name], num_rounds=1)
    stacked = await ran(spec, agent_devices=(2, 4))
    exact = await ran({**spec, "vectorised": None}, agent_devices=(2, 4))
    scale = max(float(tensor.abs().max()) for tensor in exact.model.values())
    n_steps = max(n_samples for _, n_samples, *_ in scores(exact)) // 10 + 1
    assert flat.distance(stacked.model, exact.model) < 1e-5 * scale * n_steps
    for (own, theirs), (row, other) in zip(
        zip(stacked.links(), exact.links(), strict=True), zip(scores(stacked), scores(exact), strict=True), strict=True
    ):
        assert own[0][2:] == theirs[0][2:]
        assert row[:2] == other[:2]
        assert own[1][1] == pytest.approx(theirs[1][1], abs=64)  # digits of losses


@pytest.mark.whole
async def test_shares_of_an_edges_samples_are_trained_alike_whichever_agents_do() -> None:
    """Edges are the clients; their own workers train, too, each in a stack of its own."""
    sharing = {"client": "edge", "schedule": "equal", "average_every": "epoch", "local_epochs": 2}
    spec = unequal(algorithm="fedper", num_rounds=1, **sharing)
    one = await ran(spec, agent_devices=(6,))
    other = await ran(spec, agent_devices=(2, 4))
    assert digest_of(other) == digest_of(one)
    assert scores(other) == scores(one)
    exact = await ran({**spec, "vectorised": None}, agent_devices=(6,))
    assert 0 < flat.distance(one.model, exact.model) < 1e-4 < flat.distance(one.model, one.experiment.initial)


@pytest.mark.whole
async def test_held_and_compressed_updates_are_those_of_their_devices() -> None:
    """With a deadline agents hold updates; a compressed update's error stays with its device."""
    spec = unequal(round_deadline_s=1e6, compression={"up": {"name": "topk", "fraction": 0.1}})
    one = await ran(spec, agent_devices=(6,))
    other = await ran(spec, agent_devices=(2, 4))
    assert digest_of(other) == digest_of(one)
    assert other.links() == one.links()
    assert all(row.outcome == "used" for detail in one.rounds for row in detail.seats)


def test_the_exact_path_is_the_default() -> None:
    assert ExperimentSpec().vectorised is None


async def test_a_device_that_fails_leaves_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seat 2 diverges; the others' results are those of a run from which its visit is left out."""

    def sick(self: DeviceHooks, ctx: Any, state: Any, message: Any) -> Training:
        start = message.model
        names = [name for name in start if name not in ctx.model.buffer_names]
        factor = math.nan if ctx.seat == 2 else 0.0
        return Training(start, Elementwise(pull, ([torch.full_like(start[name], factor) for name in names],)))

    monkeypatch.setattr(DeviceHooks, "training", sick)
    done = await run(tmp_path, unequal(num_rounds=1), agent_devices=(6,))
    rows = {row.seat: row for row in done.rounds[0].seats}
    assert (rows[2].outcome, rows[2].reason) == ("failed", "not_finite")
    assert [seat for seat, row in rows.items() if row.outcome == "failed"] == [2]
    without = unequal(num_rounds=1, losses=[{"round_no": 1, "seats": [2]}])
    assert (await run(tmp_path, without, agent_devices=(6,))).info.model_sha256 == done.info.model_sha256


async def test_a_correction_that_cannot_be_stacked_is_refused_with_the_algorithms_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: DeviceHooks, ctx: Any, state: Any, message: Any) -> Training:
        return Training(message.model, lambda parameters, gradients: None)

    monkeypatch.setattr(DeviceHooks, "training", closed)
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        info = await fed.run(unequal())
    assert info.status == "failed"
    assert "fedavg corrects gradients by a function of one device" in (info.reason or "")


def pull(parameters: list[torch.Tensor], gradients: list[torch.Tensor], shifts: list[torch.Tensor]) -> None:
    torch._foreach_add_(gradients, shifts)


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("when", ["once", "load", "expand"])
async def test_augmented_images_are_those_of_the_exact_path(when: str) -> None:
    spec = unequal(augment={"name": "randaugment", "when": when}, num_rounds=1)
    stacked = await ran(spec, agent_devices=(2, 4))
    exact = await ran({**spec, "vectorised": None}, agent_devices=(6,))
    assert flat.distance(stacked.model, exact.model) < 1e-4
    assert flat.distance(stacked.model, exact.experiment.initial) > 1e-3


@ON_GPU
async def test_on_a_gpu_neither_agents_nor_their_number_change_a_bit() -> None:
    spec = unequal(device="cuda")
    one = await ran(spec, agent_devices=(6,))
    assert (await ran(spec, agent_devices=(2, 4))).info.model_sha256 == one.info.model_sha256
    here = await ran(unequal(), agent_devices=(6,))
    assert flat.distance(one.model, here.model) < 1e-3


# ---- refusals


REFUSED = ["moon", "fedmix", "per_fedavg", "bofl", "lafl_cpn", "es_afl", "t_fedavg"]


def test_every_other_algorithm_that_has_no_objective_is_accepted() -> None:
    accepted = all_algorithms().keys() - {*REFUSED, "fedser"}
    assert accepted > {"fedavg", "fedprox", "scaffold", "fedper"}
    for name in accepted:
        spec = small_spec(algorithm=name, vectorised=WIDTH, **load_algorithm(name).needs)
        assert parse_spec(spec).vectorised is not None


@pytest.mark.parametrize("name", REFUSED)
def test_an_algorithm_with_a_training_of_its_own_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadInput, match=f"vectorised: the devices of {name} train in a `local_update` of") as refused:
        parse_spec(small_spec(algorithm=name, vectorised=WIDTH))
    assert refused.value.field == "vectorised"


def test_an_objective_of_another_algorithm_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="vectorised: the objective of fedser") as refused:
        parse_spec(small_spec(algorithm={"name": "fedavg", "local": "fedser"}, vectorised=WIDTH))
    assert refused.value.field == "vectorised"


async def test_the_cloud_refuses_a_run_before_it_begins(tmp_path: Path) -> None:
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        answer = await fed.client.post("/runs", json={"spec": small_spec(algorithm="moon", vectorised=WIDTH)})
    assert (answer.status_code, answer.json()["field"]) == (422, "vectorised")


def test_a_model_with_a_layer_that_has_no_stacked_form_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.training.stacked.layers.PER_SAMPLE", ())
    with pytest.raises(BadInput, match=r"vectorised: features.0 \(Flatten\) has no stacked form"):
        resolved(**small_spec(vectorised=WIDTH))


@pytest.mark.parametrize("width", [0, -1, 4097, 1.5])
def test_a_width_out_of_bounds_is_refused(width: float) -> None:
    with pytest.raises(ValidationError, match=r"vectorised\.width"):
        ExperimentSpec.model_validate(small_spec(vectorised={"width": width}))


def test_a_clock_that_sends_devices_one_by_one_is_refused() -> None:
    with pytest.raises(ValidationError, match="vectorised needs clock: simulated"):
        ExperimentSpec.model_validate(small_spec(vectorised=WIDTH, clock="real"))
