"""The plan of a run: what its data and its model were taken to be, said once before the first round.

A plan shows what was decided for the user: which column became numbers, how many outputs a model has. It is part of the
run's record.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from shared.core.formatting import counted
from shared.core.tensors import without
from shared.federation.dtype_checks import count_by_dtype
from shared.federation.experiment import Experiment
from shared.simulation.profile_catalogue import STANDARD
from shared.training import models
from shared.training.data.dataset import Dataset
from shared.training.description import Sample
from shared.training.losses import LOSSES
from shared.training.specs import DataSpec

LINE, LINES = 2_000, 200
"""Most characters of a line of a plan, and most lines."""
TRIED, CLOSE = 8, 1e-3
"""Samples on which a user's model is tried, and how far from 1 the sum of probabilities may be."""


def plan_of(experiment: Experiment) -> tuple[str, ...]:
    """Returns the plan of an experiment, a sentence a line."""
    whole = [line.replace("\r", "\\r").replace("\n", "\\n") for line in _lines(experiment)]  # names may have some
    lines = [line if len(line) <= LINE else f"{line[: LINE - 4]} ..." for line in whole]
    if len(lines) > LINES:
        lines[LINES - 1 :] = [f"... and {len(lines) - LINES + 1} more lines"]
    return tuple(lines)


def _lines(experiment: Experiment) -> Iterator[str]:
    yield _data_line(experiment.data, experiment.spec.data)
    yield from experiment.data.reading.lines()
    yield from _validation_line(experiment)
    yield from _measured_line(experiment)
    yield _model_line(experiment)
    yield from _frozen_line(experiment)
    yield from _unregistered_line(experiment)
    yield from _output_lines(experiment)
    if experiment.personal_names:
        known = [name for name in experiment.shapes if name not in experiment.frozen_names]
        which = ", ".join(_shortened(experiment.personal_names, known))
        yield f"personal with {experiment.spec.algorithm.name}: {which}"


def _data_line(data: Dataset, spec: DataSpec) -> str:
    """The numbers of samples, what one is, and what is to be predicted."""
    n_train, n_test = _used(spec.n_train, len(data.train_x)), _used(spec.n_test, len(data.test_x))
    counts = f"{n_train} training and {n_test} test samples"
    return f"data {data.name}: {counts}; each is {_sample(data.sample)}; target: {data.target.words}"


def _validation_line(experiment: Experiment) -> Iterator[str]:
    """The samples by which the best round is chosen, if there are any."""
    parts = experiment.population.validation
    if parts:
        whose = "the test samples" if parts[0].owner is None else f"the training samples of {len(parts):,} clients"
        n = sum(len(part.samples) for part in parts)
        yield f"validation: {n:,} of {whose}, which neither train nor test a model, choose the best round"


def _measured_line(experiment: Experiment) -> Iterator[str]:
    """Where the figures of measured devices came from, and which device has which."""
    spec = experiment.spec.devices
    if spec.file is None:
        return
    file, n = spec.file, experiment.spec.max_devices or 1
    n_rows, base = len(file.devices.rows), spec.profile.name if spec.profile else STANDARD
    how = "drawn by seed, each row at most once" if n <= n_rows else f"drawn by seed, each row for {_times(n, n_rows)}"
    which = "device n has row n" if file.rows == "in_order" else how
    columns = file.devices.columns
    rest = [name for name in ("compute_sps", "up_bps", "down_bps", "latency_s") if name not in columns]
    others = f"; {', '.join(rest) or 'all else'} {'are those' if len(rest) > 1 else 'is that'} of profile {base}"
    source = f"{file.path} ({counted(n_rows, 'row')}, sha256 {file.digest[:12]})"
    yield f"profiles: {', '.join(columns)} of {counted(n, 'device')} from {source}, {which}{others}"


def _times(n: int, n_rows: int) -> str:
    least, more = divmod(n, n_rows)
    return f"{least} or {least + 1} devices" if more else counted(least, "device")


def _used(n: int | None, n_all: int) -> str:
    return f"{n_all:,}" if n is None or n == n_all else f"{n:,} of {n_all:,}"


def _sample(sample: Sample) -> str:
    shape = " x ".join(map(str, sample.shape))
    if sample.images:
        channels, height, width = sample.shape
        return f"an image of {height} x {width} pixels, {channels} channel{'s' * (channels != 1)}"
    if sample.dtype == "int64":
        known = "" if sample.vocabulary is None else f", of {sample.vocabulary:,} values"
        return f"{shape} indices{known}"
    if len(sample.shape) > 1:
        channels = sample.shape[-1 if sample.layout == "channels_last" else 0]
        which = "last" if sample.layout == "channels_last" else "first"
        return f"{shape} numbers, {channels} channel{'s' * (channels != 1)} ({which})"
    return f"{shape} numbers"


def _model_line(experiment: Experiment) -> str:
    counts = count_by_dtype(without(experiment.shapes, experiment.buffer_names))
    n, plain = sum(counts.values()), counts.keys() <= {"float32"}
    of = "" if plain else f" ({', '.join(f'{dtype} {n:,}' for dtype, n in counts.items())})"
    return f"model {experiment.spec.model}: {n:,} parameters{of}, outputs {experiment.data.target.outputs}"


def _frozen_line(experiment: Experiment) -> Iterator[str]:
    """Which parameters are frozen, if any are."""
    frozen, parameters = experiment.frozen_names, experiment.shapes.keys() - experiment.buffer_names
    if frozen:
        n = sum(math.prod(experiment.shapes[name].shape) for name in frozen)
        where = ", ".join(_shortened(frozen, [name for name in experiment.shapes if name in parameters]))
        yield f"frozen, so not trained and not sent up: {n:,} parameters ({where})"


def _output_lines(experiment: Experiment) -> Iterator[str]:
    """What of the forward pass of a user's model is taken as its outputs, if that is not plain."""
    if not experiment.has_own_module:
        return
    data, target = experiment.data, experiment.data.target
    outputs, place = models.first_outputs(experiment.design, data.encode(data.train_x[:TRIED]))
    if place:
        yield f"outputs of the model: {place}"
    loss = experiment.spec.loss
    if (loss is None or loss.name in LOSSES) and target.kind in ("classes", "tokens") and _are_probabilities(outputs):
        yield (
            "the model's outputs are probabilities, as of softmax: losses and metrics of classes take logits, without "
            "softmax, as torch's cross_entropy; with it training is slow, and predicted probabilities are wrong"
        )


def _are_probabilities(outputs: Tensor) -> bool:
    """Whether outputs are at least 0, and sum to 1 over the last axis of two classes or more."""
    values = outputs.to(torch.float64)
    sums = values.sum(-1)
    return outputs.shape[-1] > 1 and bool((values >= 0).all()) and bool(((sums - 1).abs() < CLOSE).all())


def _unregistered_line(experiment: Experiment) -> Iterator[str]:
    """Which tensors the model does not register, if there are any that look as if they were to be trained."""
    found = models.unregistered(models.built(experiment.design, 0)) if experiment.has_own_module else ()
    if found:
        hint = "nn.ModuleList, nn.ModuleDict and nn.Parameter register"
        yield f"not registered, so neither trained nor sent: {', '.join(found)} ({hint})"


def _shortened(names: Collection[str], known: Sequence[str]) -> list[str]:
    """Some of the known names of tensors, with the name of a module in place of all that are in it."""
    found: dict[str, None] = {}
    for name in (name for name in known if name in names):
        parts = name.split(".")
        prefixes = [".".join(parts[:n]) for n in range(1, len(parts))]
        whole = (prefix for prefix in prefixes if all(n in names for n in known if n.startswith(f"{prefix}.")))
        found.setdefault(next(whole, name))
    return list(found)
