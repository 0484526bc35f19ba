"""Sizes of the benchmark rows: as reported (`FULL`), and as the tests run them (`TINY`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.loops import Job
from benchmarks.step_cost import Case
from shared.training.models import Shape


class Epoch(NamedTuple):
    """An epoch of a model on samples of that shape."""

    model: str
    shape: Shape
    batch_size: int
    n_samples: int


class Stack(NamedTuple):
    """Devices that are trained in stacks, for an epoch each.

    Attributes:
        on_gpu: whether the case is one for a machine with a GPU, or for one without.
        most: upper limit of the ratio to the same devices one after another.
    """

    model: str
    shape: Shape
    n_devices: int
    width: int
    n_samples: int
    batch_size: int = 32
    on_gpu: bool = False
    most: float | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of all rows.

    Attributes:
        n_rounds: timed rounds of each variant, after its first.
        start: numbers of edges and of agents that are started, forked and executed.
        start_memory: of which of these two ways the memory is measured.
        population: as many devices as train in a round of each, and many more.
        scale: numbers of devices; the slope is fitted from the second to the last.
        scale_samples: samples of each of these devices: few, so that the overhead of a device is measured.
        runs: the work of each of several runs, and their rounds.
        runs_beside: numbers of runs, and of agents of each.
        devices: numbers of participants, each with the numbers of devices among which they are.
        in_flight: the work of asynchronous devices, their versions, and the updates of a version.
        long: rounds after which memory is measured: early, late.
        event_clients: numbers of clients of a run's events.
        event_rounds: rounds over which the cloud's CPU is measured, in each turn.
        train: models of the training loop's row.
        train_s: seconds for each model of the training loop's row.
        methods: cases for the steps of the methods.
        half: cases for sub-networks of half the units.
        pristine: visits before which a module is put back.
        stacked: cases for many devices at once.
        stacked_s: seconds for each of them.
    """

    n_rounds: int
    start: tuple[int, int]
    start_memory: tuple[str, ...]
    cnn: Job
    mlp: Job
    transport: Job
    population: tuple[Job, Job]
    scale: tuple[int, ...]
    scale_samples: int
    devices: tuple[tuple[int, tuple[int, ...]], ...]
    runs: tuple[Job, int]
    runs_beside: tuple[tuple[int, int], ...]
    in_flight: tuple[Job, int, int]
    long: tuple[int, int]
    event_clients: tuple[int, ...]
    event_rounds: int
    train: tuple[Epoch, ...]
    train_s: float
    methods: tuple[Case, ...]
    half: tuple[Case, ...]
    pristine: tuple[Case, ...]
    stacked: tuple[Stack, ...]
    stacked_s: float


FULL = Sizes(
    n_rounds=7,
    start=(2, 2),
    start_memory=("forked", "executed"),
    cnn=Job("mnist", "cnn_mnist", n_devices=20, n_samples=600),
    mlp=Job("mnist", "mlp", n_devices=100, n_samples=100),
    transport=Job("cifar10", "resnet18", n_devices=20, n_samples=10, epochs=0),
    population=(Job("mnist", "mlp", 100, 20), Job("mnist", "mlp", 20_000, 20)),
    scale=(10, 100, 1000, 5000),
    scale_samples=20,
    runs=(Job("mnist", "mlp", n_devices=20, n_samples=100), 10),
    runs_beside=((2, 1), (8, 2)),
    in_flight=(Job("mnist", "cnn_mnist", n_devices=20, n_samples=200), 12, 10),
    devices=((100, (100, 1000, 20_000, 1_000_000)), (1000, (1000, 1_000_000))),
    long=(5, 50),
    event_clients=(100, 1000),
    event_rounds=100,
    train=(
        Epoch("mlp", (1, 8, 8), 32, 320),
        Epoch("mlp", (1, 28, 28), 32, 320),
        Epoch("cnn_mnist", (1, 28, 28), 10, 100),
        Epoch("cnn_cifar10", (3, 32, 32), 32, 96),
        Epoch("cnn_6_12", (3, 32, 32), 128, 256),
        Epoch("resnet18", (3, 32, 32), 32, 32),
        Epoch("mobilenet_v1", (3, 32, 32), 32, 64),
    ),
    train_s=4.0,
    methods=(
        Case("cnn_6_16", (3, 32, 32), batch_size=64, n_batches=16, projection=256),
        Case("cnn_digits", (3, 28, 28), batch_size=16, n_batches=4),
    ),
    pristine=(
        Case("mlp", (1, 28, 28), batch_size=32, n_batches=4),
        Case("cnn_mnist", (1, 28, 28), batch_size=32, n_batches=4),
    ),
    half=(
        Case("vgg_mnist", (1, 28, 28), batch_size=32, n_batches=4),
        Case("mobilenet_femnist", (1, 28, 28), batch_size=32, n_batches=4),
        Case("resnet18", (3, 32, 32), batch_size=32, n_batches=1),
    ),
    stacked=(
        Stack("mlp", (1, 28, 28), n_devices=100, width=10, n_samples=100),
        Stack("cnn_mnist", (1, 28, 28), n_devices=20, width=5, n_samples=100),
        Stack("resnet18", (3, 32, 32), n_devices=4, width=2, n_samples=32),
        Stack("mlp", (1, 28, 28), n_devices=100, width=100, n_samples=100, on_gpu=True, most=0.10),
        Stack("mlp", (1, 28, 28), n_devices=1000, width=500, n_samples=100, on_gpu=True, most=0.10),
        Stack("cnn_mnist", (1, 28, 28), n_devices=100, width=100, n_samples=100, on_gpu=True, most=0.10),
        Stack("cnn_mnist", (1, 28, 28), n_devices=1000, width=100, n_samples=100, on_gpu=True, most=0.10),
        Stack("resnet18", (3, 32, 32), n_devices=100, width=20, n_samples=32, on_gpu=True),
        Stack("resnet18", (3, 32, 32), n_devices=1000, width=20, n_samples=32, on_gpu=True),
    ),
    stacked_s=20.0,
)
TINY = Sizes(
    n_rounds=1,
    start=(1, 1),
    start_memory=("forked",),
    cnn=Job("mnist", "cnn_mnist", n_devices=4, n_samples=16),
    mlp=Job("mnist", "mlp", n_devices=4, n_samples=16),
    transport=Job("cifar10", "mlp", n_devices=4, n_samples=10, epochs=0),
    population=(Job("mnist", "mlp", 4, 4), Job("mnist", "mlp", 16, 4)),
    scale=(4, 6, 8),
    scale_samples=4,
    runs=(Job("mnist", "mlp", n_devices=4, n_samples=16), 2),
    runs_beside=((2, 1),),
    in_flight=(Job("mnist", "mlp", n_devices=4, n_samples=16), 2, 2),
    devices=((4, (4, 40)),),
    long=(1, 2),
    event_clients=(2,),
    event_rounds=2,
    train=(Epoch("mlp", (1, 8, 8), 32, 64), Epoch("cnn_mnist", (1, 28, 28), 10, 20)),
    train_s=0.0,
    methods=(Case("mlp", (3, 8, 8), batch_size=8, n_batches=2),),
    half=(Case("mlp", (1, 8, 8), batch_size=8, n_batches=2),),
    pristine=(Case("mlp", (1, 8, 8), batch_size=8, n_batches=2),),
    stacked=(
        Stack("mlp", (1, 8, 8), n_devices=3, width=2, n_samples=16),
        Stack("mlp", (1, 8, 8), n_devices=3, width=2, n_samples=16, on_gpu=True),
    ),
    stacked_s=0.0,
)
