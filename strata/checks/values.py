"""What has to hold of models, data sets, partitions and selection policies, tried with their default parameters."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shared.core.plugins import Value
from shared.core.randomness import seeded_generators
from shared.core.tensor_records import TensorMap
from shared.federation.context import EdgeView
from shared.federation.experiment import Experiment
from shared.federation.selection import SelectionPolicy, select
from shared.federation.spec_parser import parse_spec
from shared.training.data.open_data import open_data
from shared.training.data.plugged import DataSource
from shared.training.description import Classes, Numbers, Sample, Target, Tokens
from shared.training.flops import training_flops
from shared.training.loop import train
from shared.training.models import Design, ModelFactory, Pristine, build, read_state, write_state
from shared.training.partition import Partitioner, PluggedPartition, partition
from shared.training.specs import DataSpec
from strata.checks.algorithm_rounds import SMALL
from strata.checks.monitor import leaves, require

Fit = tuple[Sample, Target]
"""Samples and a target for which a model can be built."""
TRIED: tuple[Fit, ...] = (
    (Sample((1, 28, 28), images=True), Classes(10)),
    (Sample((3, 32, 32), images=True), Classes(10)),
    (Sample((30,)), Classes(2)),
    (Sample((30,)), Numbers((1,))),
    (Sample((1, 64)), Classes(4)),
    (Sample((1, 64)), Numbers((1, 64))),
    (Sample((16,), dtype="int64", vocabulary=32), Tokens(32, 16)),
    (Sample((16,), dtype="int64", vocabulary=32), Classes(4)),
)
"""What a model is tried on until one fits: grey and coloured images, rows of a table, signals, and texts."""
BATCH = 4


def has_a_description(value: Value) -> None:
    """The description is one line."""
    text = value.description
    require(bool(text.strip()) and "\n" not in text, "`description` is not one line that says what it is")


def parameters_have_defaults(value: Value) -> None:
    """Parameters have defaults, so that the name alone is a valid choice."""
    if value.params is not None:
        required = [name for name, known in value.params.model_fields.items() if known.is_required()]
        require(not required, f"parameters without a default: {', '.join(required)}")


# ---- models


def model_fits_some_data(factory: ModelFactory) -> Fit:
    """Returns samples and a target for which the factory builds a model whose outputs fit."""
    causes: list[str] = []
    for sample, target in TRIED:
        try:
            outputs = build(factory.name, sample, target, 0)(sample.example(BATCH))
        except Exception as error:  # a plug-in may raise anything; the next data may fit
            causes.append(f"{sample.shape} of {sample.what}, {target.kind}: {type(error).__name__}: {error}")
            continue
        shape = tuple(getattr(outputs, "shape", ()))
        if target.fits(shape, BATCH):
            return sample, target
        causes.append(f"{sample.shape} of {sample.what}, {target.kind}: outputs {shape}, not {target.outputs}")
    shown = "; ".join(cause[:200] for cause in causes[:3])
    hint = "take sizes from `sample.shape` and `target.n_outputs`"
    require(False, f"no data fit ({len(causes)} kinds tried: {shown}; ...): {hint}")
    raise AssertionError("unreachable")


def model_is_drawn_by_the_seed(factory: ModelFactory, fit: Fit) -> None:
    """Initial weights depend on the seed alone, and are finite."""
    one, same, other = (read_state(build(factory.name, *fit, seed)) for seed in (0, 0, 1))
    require(leaves(one) == leaves(same), "two models of one seed differ: draw weights from torch's generator only")
    require(leaves(one) != leaves(other), "models of two seeds are equal: weights are not drawn from torch's generator")
    bad = [name for name, tensor in one.items() if not bool(torch.isfinite(tensor.double()).all())]
    require(not bad, f"initial weights that are not finite: {', '.join(bad)}")


def clients_are_alike_in_any_order(factory: ModelFactory, fit: Fit) -> None:
    """Two clients that one process trains have the same results in both orders."""
    sample, target = fit
    scratch = Pristine(build(factory.name, sample, target, 0), watched=True)
    start, ends = read_state(scratch.restored()), []
    for order in ((0, 1), (1, 0)):
        ends.append({client: _trained(scratch.restored(), start, fit, client) for client in order})
    first, second = ends
    odd = [name for client in (0, 1) for name, t in first[client].items() if not torch.equal(t, second[client][name])]
    hint = "keep what changes in the module, and draw from torch's, numpy's or Python's default generator only"
    require(not odd, f"{odd[0] if odd else ''} of a client depends on which client was trained before it: {hint}")


def _trained(model: nn.Module, start: TensorMap, fit: Fit, client: int) -> TensorMap:
    """The state of a client's model after three steps, and its outputs."""
    sample, target = fit
    write_state(model, start)
    rng = np.random.default_rng(client)
    with seeded_generators(client):
        drawn = [(_samples(sample, rng), _targets(target, rng)) for _ in range(3)]
        train(model, drawn, lr=0.01, target=target)
        with torch.no_grad():
            outputs = model.eval()(drawn[0][0])
    return read_state(model) | {"the outputs": outputs}


def _samples(sample: Sample, rng: np.random.Generator) -> torch.Tensor:
    shape = (BATCH, *sample.shape)
    drawn = rng.normal(size=shape) if sample.dtype == "float32" else rng.integers(0, sample.vocabulary or 2, shape)
    return torch.from_numpy(drawn).to(getattr(torch, sample.dtype))


def _targets(target: Target, rng: np.random.Generator) -> torch.Tensor:
    like = target.example(BATCH)
    if isinstance(target, Numbers):
        return torch.from_numpy(rng.normal(size=tuple(like.shape))).to(like.dtype)
    return torch.from_numpy(rng.integers(0, target.n, tuple(like.shape)))


def model_trains(factory: ModelFactory, fit: Fit) -> None:
    """Every parameter that is not frozen gets a gradient, and the operations of a training step can be counted."""
    sample, target = fit
    model = build(factory.name, sample, target, 0)
    target.loss(model(sample.example(BATCH)), target.example(BATCH)).backward()  # type: ignore[no-untyped-call]
    idle = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
    require(not idle, f"parameters without a gradient: {', '.join(idle)}")
    require(training_flops(Design(factory.name, sample, target)) > 0, "no operation is counted")


# ---- data sets


def data_set_is_the_same_each_time(source: DataSource) -> None:
    """Its arrays are valid, and two readings give the same ones."""
    digests = []
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="strata-check-") as folder:
            found = open_data(DataSpec(name=source.name), data_dir=None, cache_dir=Path(folder))
            digests.append(found.digest)
    require(digests[0] == digests[1], "two readings give different arrays: draw from a generator with a fixed seed")


# ---- partitions


def samples_are_dealt_by_the_generator_alone(partitioner: Partitioner) -> None:
    """Each sample goes to one client at most, each client gets one, and only the task's generator is drawn from."""
    labels = np.repeat(np.arange(5), 40)
    groups = np.arange(200) // 10

    def deal(seed: int) -> list[list[int]]:
        known: dict[str, Any] = {"edges": [0, 0, 1, 1], "n_classes": 5, "writers": groups}
        spec, rng = PluggedPartition(name=partitioner.name), np.random.default_rng(seed)
        return [part.tolist() for part in partition(spec, labels, 4, rng, **known)]

    require(deal(0) == deal(0), "two draws of one seed differ: draw from `task.rng` only")


# ---- selection policies


def seats_are_selected_by_the_context_alone(policy: SelectionPolicy, folder: Path) -> None:
    """It selects seats that it was given, none twice, the same ones when asked again, and changes nothing."""
    spec = parse_spec({**SMALL, "num_devices": 8, "select": policy.name, "fraction_train": 0.5})
    spec = spec.resolved(n_devices=8, n_edges=2)
    experiment = Experiment(spec, open_data(spec.data, data_dir=None, cache_dir=folder / "data"))
    for edge in (0, 1):
        seats = [seat for seat in experiment.population.seats if seat.home_edge == edge]
        ctx = experiment.ctx(phase="train", round_no=1, n_clients=8, edge=edge)
        for losses in ({}, {seat.number: 1.0 / (1 + seat.number) for seat in seats}):
            view = EdgeView(losses=dict(losses))
            chosen = select(ctx, seats, view)
            require(bool(chosen), "it selects no device")
            require(chosen == select(ctx, seats, view), "two choices differ: draw from `ctx.numpy_rng` only")
            require(view.losses == losses, "it changes the losses that it is given")
