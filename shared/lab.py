"""`Lab`: everything that follows from a spec: algorithm, data, population, model, the grid of exact sums.

Each tier derives the same lab from the spec that a message carries. A lab belongs to one thread: its scratch model
is used by one training or evaluation at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from shared.algorithms import load_algorithm, load_local
from shared.algorithms._hooks import Algorithm, Fit, Phase
from shared.arrival import collected
from shared.codecs import Compression
from shared.context import Ctx, stream_seed
from shared.costs import LinkUse
from shared.errors import BadInput
from shared.messages import Work, wire_types
from shared.population import Indices, Population, Samples, Seat, population, seated
from shared.records import Record, Score, Tensor, TensorMap
from shared.sizes import check_memory
from shared.spec import ExperimentSpec
from shared.sums import Grid
from shared.tensors import n_bytes
from shared.test_sets import TestSet
from shared.training import models
from shared.training.augment import AugmentSpec, as_floats, as_pixels, augmented, augmented_apart
from shared.training.data import Dataset, as_batch
from shared.training.domains import absent, open_data
from shared.training.flops import on_shapes, training_flops
from shared.training.loop import Batch, Correct, Objective, Step, Transform, batches, evaluate, train

Stopped = Callable[[], bool]


class Lab:
    """What a process derives from a resolved spec, once."""

    def __init__(self, spec: ExperimentSpec, data: Dataset) -> None:
        self.spec, self.data = spec, data
        self.algorithm: Algorithm = load_algorithm(spec.algorithm.name)
        self.params: Record = self.algorithm.parse_params(spec.algorithm.params)
        self.local, self.local_params = load_local(spec)
        self.wire = wire_types(
            broadcast=self.algorithm.broadcast,
            message=self.algorithm.message_type,
            update=self.algorithm.update,
            report=self.algorithm.report,
        )
        self.members: Population = population(spec, data)
        first = self._first_model()
        if spec.batch_size < self.least_batch:
            told = f"the batch-norm of {spec.model.name} trains on {self.least_batch} samples or more"
            raise BadInput(f"batch_size {spec.batch_size}: {told}", field="batch_size")
        self.shapes: TensorMap = {name: _shape(tensor) for name, tensor in first.state_dict().items()}
        check_memory(spec, self.algorithm, sum(tensor.numel() for tensor in self.shapes.values()))
        self.buffer_names = frozenset(models.buffer_names(first))
        self.layers = tuple(models.layers(first))
        self.compression = Compression(spec.compression, self.buffer_names)
        in_a_sum = 2 if spec.late == "next_round" else 1  # of a seat: what it made now, and what came late
        self.grid = Grid(in_a_sum * self.members.total_samples, self.buffer_names)

    def _first_model(self) -> nn.Module:
        seed, wanted, data = stream_seed(f"{self.spec.seed}|model"), self.spec.model, self.data
        return models.build(wanted.name, data.input_shape, data.n_classes, seed, wanted.projection)

    @cached_property
    def model(self) -> nn.Module:
        """The scratch model: an edge that only adds up has none."""
        return self._first_model()

    @property
    def initial(self) -> TensorMap:
        """The model that the run begins from, made anew each time: who keeps it pays for it."""
        return models.read_state(self._first_model())

    @cached_property
    def flops(self) -> int:
        """Operations of training the model on one sample; of an objective that draws what it does, the mean."""
        wanted, data = self.spec.model, self.data
        if self.local.flops is None:
            return training_flops(wanted.name, data.input_shape, data.n_classes, wanted.projection)
        model, x, y = on_shapes(wanted.name, data.input_shape, data.n_classes, wanted.projection)
        return round(self.local.flops(self.local_params, model, x, y) / len(y))

    @cached_property
    def least_batch(self) -> int:
        """Samples that a batch must have for the model to train on it."""
        wanted, data = self.spec.model, self.data
        return models.least_batch(wanted.name, data.input_shape, data.n_classes, wanted.projection)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The algorithm's stretches of rounds."""
        return self.algorithm.phases(self.spec, self.params)

    def phase_of(self, round_no: int) -> Phase:
        """The phase of a 1-based round; rounds beyond the last phase belong to it."""
        end = 0
        for phase in self.phases:
            end += phase.num_rounds
            if round_no <= end:
                return phase
        return self.phases[-1]

    def seat(self, number: int, profile: str | None = None) -> Seat:
        """A seat by number, with the profile of its agent where one is named."""
        planned = self.members.seats[number]
        return planned if profile is None else seated(planned, profile)

    def seat_in(self, number: int, round_no: int, profile: str | None = None) -> Seat:
        """A seat with the samples that it has collected by that round; before the first, and after the last, all."""
        return collected(self.spec, self.seat(number, profile), round_no)

    @property
    def sample_bytes(self) -> int:
        """Of one training sample as it travels: its image and its label."""
        x, y = self.data.train_x, self.data.train_y
        return int(x.nbytes // max(len(x), 1)) + y.itemsize

    def moved_bytes(self, number: int, work: Work) -> int:
        """Of the samples of a work that its seat does not hold; the edge's own machine has them all."""
        seat = self.seat(number)
        if work.samples is None or seat.role == "worker":
            return 0
        return int((~np.isin(work.samples.numpy(), seat.train)).sum()) * self.sample_bytes

    @cached_property
    def _model_use(self) -> LinkUse:
        """Bytes of the model as devices receive it, and of an update of all of it."""
        codecs, carried = self.spec.compression, self.compression.carried_bytes
        return LinkUse(down_bytes=carried(self.shapes, codecs.down), up_bytes=carried(self.shapes, codecs.up))

    def ctx(self, *, phase: str, round_no: int, n_clients: int, edge: int | None = None) -> Ctx:
        """The context of hooks of this run."""
        return Ctx(
            spec=self.spec,
            params=self.params,
            phase=phase,
            round_no=round_no,
            n_clients=n_clients,
            edge=edge,
            buffer_names=self.buffer_names,
            layers=self.layers,
            buffers=self.algorithm.buffers,
            flops=self.flops,
            least_batch=self.least_batch,
            model_bytes=n_bytes(self.shapes),
            model_use=self._model_use,
            sample_bytes=self.sample_bytes,
            total_samples=self.members.total_samples,
        )

    def objective(self, ctx: Ctx, given: Objective | None) -> Objective | None:
        """What a training minimises: what hooks hand it, else what the spec's algorithm declares; None: cross-entropy.

        Raises:
            BadInput: the hooks hand it one, and the spec names another.
        """
        if given is not None and self.spec.algorithm.local is not None:
            raise BadInput(f"{self.algorithm.name} has a local objective of its own", field="algorithm.local")
        if given is not None or self.local.objective is None:
            return given
        return self.local.objective(ctx.at(params=self.local_params))

    def bench(self, work: Work, own: Indices, test: Samples, stopped: Stopped | None = None) -> Workbench:
        """A workbench over some samples."""
        chosen = own if work.samples is None else work.samples.numpy().astype(np.int64)
        return Workbench(self, work, chosen, test, stopped)


def _shape(tensor: Tensor) -> Tensor:
    """A tensor of this shape and dtype that takes no memory, for checks."""
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


@dataclass
class Workbench:
    """The hooks' `Bench`: the one training loop on one client's samples."""

    lab: Lab
    work: Work
    train: Indices
    tests: Samples
    stopped: Stopped | None = None

    @property
    def n_samples(self) -> int:
        """Number of training samples of this visit: the client's weight."""
        return len(self.train)

    @property
    def samples(self) -> Samples:
        """The training samples of this visit."""
        return Samples("train", self.train)

    def arrays(self, part: Literal["train", "test"]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Images and labels of one part of the data set."""
        data = self.lab.data
        return (data.train_x, data.train_y) if part == "train" else (data.test_x, data.test_y)

    def images(self, samples: Samples) -> Tensor:
        """Images as the model gets them: float32, (n, channels, height, width)."""
        x, _ = self.arrays(samples.part)
        return as_batch(x[samples.indices])

    @property
    def test_sets(self) -> Mapping[str, TestSet]:
        """The run's test sets that consist of clients' own."""
        return self.lab.members.test_sets

    def batches(
        self,
        ctx: Ctx,
        *,
        samples: Samples | None = None,
        purpose: str = "batches",
        epochs: int | None = None,
        augment: bool = True,
    ) -> Iterator[Batch]:
        """Shuffled batches as they are trained on, augmented where the spec says so."""
        samples, work, how = samples or self.samples, self.work, ctx.spec.augment if augment else None
        (x, y), indices = self.arrays(samples.part), samples.indices
        if how is not None and how.when == "once":
            x, y, indices = self._copy(ctx, samples)
        steps = work.steps if epochs is None else None
        if epochs is None and steps is None:
            epochs = ctx.spec.local_epochs if work.epochs is None else work.epochs
        drawn = batches(
            x,
            y,
            indices,
            batch_size=work.batch_size,
            generator=ctx.rng(purpose),
            epochs=epochs,
            steps=steps,
            least=ctx.least_batch,
        )
        if how is None or how.when == "once":
            return drawn
        draws = ctx.rng(f"{purpose} augmented")
        seeds = (int(torch.randint(2**62, (), generator=draws)) for _ in count())
        return ((as_floats(augmented(as_pixels(x), how, seed)), y) for (x, y), seed in zip(drawn, seeds, strict=False))

    def _copy(self, ctx: Ctx, samples: Samples) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Indices]:
        """The client's augmented copy of these samples: what an image became depends on nothing but itself."""
        x, y = self.arrays(samples.part)
        seeds = [stream_seed(f"{ctx.spec.seed}|augmented|{samples.part} {index}") for index in samples.indices]
        made = augmented_apart(as_pixels(as_batch(x[samples.indices])), ctx.spec.augment or AugmentSpec(), seeds)
        laid_out = made[:, 0] if x.ndim == 3 else made.permute(0, 2, 3, 1)
        return laid_out.numpy(), y[samples.indices], np.arange(len(seeds), dtype=np.int64)

    def fit(
        self,
        ctx: Ctx,
        start: Mapping[str, Any],
        *,
        samples: Samples | None = None,
        purpose: str = "batches",
        epochs: int | None = None,
        trains: Collection[str] | None = None,
        objective: Objective | None = None,
        correct: Correct | None = None,
        transform: Transform | None = None,
        step: Step | None = None,
    ) -> Fit:
        """Train from `start` for the work's epochs or steps, or for so many epochs; see `Bench.fit`."""
        model, spec = self.lab.model, ctx.spec
        models.write_state(model, start)
        frozen = [p for name, p in model.named_parameters() if trains is not None and name not in trains]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            trained = train(
                model,
                self.batches(ctx, samples=samples, purpose=purpose, epochs=epochs),
                lr=spec.lr,
                momentum=spec.momentum,
                weight_decay=spec.weight_decay,
                objective=self.lab.objective(ctx, objective),
                correct=correct,
                transform=transform,
                step=step,
                stopped=self.stopped,
            )
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
        return Fit(models.read_state(model), trained)

    def test(
        self, model: Mapping[str, Tensor], samples: Samples | None = None, *, transform: Transform | None = None
    ) -> Score:
        """Evaluate a model on the client's test samples, or on others."""
        samples = samples or self.tests
        models.write_state(self.lab.model, model)
        x, y = self.arrays(samples.part)
        found = evaluate(self.lab.model, x, y, samples.indices, transform=transform, stopped=self.stopped)
        return Score(n=found.n, n_correct=found.n_correct, loss_sum=found.loss_sum)


class Labs:
    """The newest labs of a process, by spec.

    Args:
        data_dir: where `.npz` data sets may lie.
        cache_dir: where unpacked arrays go.
    """

    KEEP = 2

    def __init__(self, data_dir: Path | None, cache_dir: Path) -> None:
        self.data_dir, self.cache_dir = data_dir, cache_dir
        self._labs: dict[str, Lab] = {}

    def of(self, spec: ExperimentSpec) -> Lab:
        """The lab of a spec; call it from the thread that computes."""
        key = spec.digest()
        if key not in self._labs:
            while len(self._labs) >= self.KEEP:
                self._labs.pop(next(iter(self._labs)))
            self._labs[key] = Lab(spec, self.data_of(spec))
        self._labs[key] = self._labs.pop(key)
        return self._labs[key]

    def data_of(self, spec: ExperimentSpec) -> Dataset:
        """The data set of a spec, mapped and not loaded."""
        return open_data(spec.data, data_dir=self.data_dir, cache_dir=self.cache_dir)

    def absent(self, spec: ExperimentSpec) -> dict[str, str]:
        """Which domains of the spec's data cannot be had here, and why."""
        return absent(spec.data, data_dir=self.data_dir, cache_dir=self.cache_dir)
