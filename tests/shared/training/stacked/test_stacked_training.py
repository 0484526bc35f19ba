"""Devices trained in a stack: each as if it trained alone, with bits that depend on the device alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.core.errors import DIVERGES, BadInput, Cancelled, NotFinite
from shared.training import compute_device
from shared.training.loop import Elementwise, Trained, batches, samples_at, shuffles, train
from shared.training.models import Shape, build, read_state, write_state
from shared.training.stacked.batches import Shuffled, gathered, joined
from shared.training.stacked.layers import Places, StackedConv2d, check_layers
from shared.training.stacked.memory import ALIGNED_BYTES, empty_stack, padded_rows, stack_of
from shared.training.stacked.training import Device, Result, StackTrainer

CPU = torch.device("cpu")
ON_GPU: Any = pytest.mark.skipif(
    compute_device.cuda_missing() is not None, reason=f"no CUDA: {compute_device.cuda_missing()}"
)


class Kinds(nn.Module):
    """Each kind of layer that networks of the zoo have, with few numbers."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6, bias=False)
        convolved = [first, nn.BatchNorm2d(6), nn.ReLU(), second, nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*convolved, nn.Flatten(), nn.Linear(24, 9), nn.BatchNorm1d(9), nn.ReLU())
        self.head = nn.Linear(9, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class Odd(nn.Module):
    """Layers whose sizes are odd, so that no matrix of a plain stack but the first would be aligned; with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(63, 33), nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 7))
        self.head = nn.Linear(7, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


SHAPES: dict[str, Shape] = {
    "mlp": (1, 8, 8),
    "kinds": (1, 8, 8),
    "cnn_6_16": (3, 16, 16),
    "cnn_mnist": (1, 28, 28),
    "cnn_digits": (1, 8, 8),
    "vgg_mnist": (1, 8, 8),
    "resnet18": (3, 16, 16),
    "mobilenet_v1": (1, 16, 16),
}
SMALLER: dict[str, Shape] = {**SHAPES, "resnet18": (3, 8, 8), "mobilenet_v1": (1, 8, 8), "odd": (1, 7, 9)}
"""Images on which a batch-norm has one value a sample: ill-conditioned, but bits must be equal all the more."""
OWN: dict[str, type[nn.Module]] = {"kinds": Kinds, "odd": Odd}
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


def cases(*names: str) -> list[Any]:
    """Names of models; those of the zoo are slow whose kinds of layers smaller ones have."""
    return [pytest.param(name, marks=[] if name in ("mlp", "cnn_6_16", *OWN) else pytest.mark.slow) for name in names]


def made(name: str, shape: Shape = (1, 8, 8)) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return OWN[name]() if name in OWN else build(name, shape, 10, 0)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Client:
    """A client of a test: its samples, and all that its training depends on."""

    seed: int
    n: int
    epochs: int = 1
    batch_size: int = 12
    shift: float | None = None

    def samples(self, shape: Shape) -> tuple[Any, Any]:
        rng = np.random.default_rng(self.seed)
        size = (self.n, *shape[1:]) if shape[0] == 1 else (self.n, *shape[1:], shape[0])
        return rng.integers(0, 256, size, dtype=np.uint8), rng.integers(0, 10, self.n)

    def order(self) -> list[Tensor]:
        return list(shuffles(self.n, **self.drawing()))

    def drawing(self) -> dict[str, Any]:
        generator, least = seeded(self.seed), min(2, self.n)
        return {"batch_size": self.batch_size, "generator": generator, "epochs": self.epochs, "least": least}

    def start(self, model: nn.Module) -> dict[str, Tensor]:
        """Every client starts from a model of its own."""
        noise = seeded(self.seed)
        return {
            name: tensor.cpu() + 0.01 * torch.randn(tensor.shape, generator=noise).abs() if tensor.dim() else tensor
            for name, tensor in read_state(model).items()
        }

    def correction(self, model: nn.Module, compute: torch.device = CPU) -> Elementwise | None:
        if self.shift is None:
            return None
        anchors = [torch.full_like(p, self.shift, device=compute) for p in model.parameters()]
        return Elementwise(pull, (anchors,))


def pull(parameters: list[Tensor], gradients: list[Tensor], anchors: list[Tensor]) -> None:
    for weight, gradient, anchor in zip(parameters, gradients, anchors, strict=True):
        gradient.add_(weight - anchor, alpha=0.1)


def stack(
    model: nn.Module, shape: Shape, clients: Sequence[Client], *, compute: torch.device = CPU, **changes: Any
) -> list[Result]:
    """Trains clients in one stack of four places."""
    clients = sorted(clients, key=lambda client: -len(client.order()))
    devices = []
    for client in clients:
        sizes, correction = [len(batch) for batch in client.order()], client.correction(model, compute)
        devices.append(Device(client.start(model), sizes, correction, seeded(client.seed)))
    data = [client.samples(shape) for client in clients]
    x = np.concatenate([images for images, _ in data])
    drawn = [Shuffled(labels, client.order()) for client, (_, labels) in zip(clients, data, strict=True)]
    rows = max(padded_rows(client.batch_size, client.batch_size) for client in clients)
    images = samples_at(x, np.arange(len(x)), compute)
    trainer = StackTrainer(model.to(compute), 4)
    return trainer.train(devices, rows, gathered(drawn, images, 4, rows, compute), **{**SGD, **changes})


def alone(model: nn.Module, shape: Shape, client: Client) -> tuple[dict[str, Tensor], Trained]:
    """The exact path: the client's training one step after another. The model is then as it was."""
    (x, y), first = client.samples(shape), read_state(model)
    write_state(model, client.start(model))
    torch.manual_seed(client.seed)
    drawn = batches(x, y, np.arange(client.n), **client.drawing())
    trained = train(model, drawn, correct=client.correction(model), **SGD)  # type: ignore[arg-type]
    found = read_state(model)
    write_state(model, first)
    return found, trained


def model_of(result: Result) -> dict[str, Tensor]:
    assert not isinstance(result, NotFinite), result
    return {name: tensor.cpu() for name, tensor in result[0].items()}


def bits_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert a.keys() == b.keys()
    return all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest difference of an element, relative to the largest element of its tensor."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max() / b[name].abs().max().clamp(min=1e-3)) for name in b)


# ---- the exact path is the oracle


@pytest.mark.parametrize("name", cases(*SHAPES))
def test_a_step_of_each_device_is_the_exact_paths_to_1e5(name: str) -> None:
    """One step, in which the batches of the devices have different numbers of samples."""
    model, shape = made(name, SHAPES[name]), SHAPES[name]
    clients = [Client(seed, n, shift=0.01) for seed, n in enumerate((12, 7, 3))]
    for client, result in zip(clients, stack(model, shape, clients), strict=True):
        expected, trained = alone(model, shape, client)
        assert distance(model_of(result), expected) < 1e-5
        found = result[1]  # type: ignore[index]
        assert (found.n_samples, found.n_steps, found.n_correct) == (client.n, 1, trained.n_correct)
        assert found.loss == pytest.approx(trained.loss, rel=1e-5)


def test_epochs_of_unequal_devices_with_momentum_are_the_exact_paths() -> None:
    """A device's parameters and velocities stay as they are once it has no batch any more."""
    model, shape = made("mlp"), (1, 8, 8)
    clients = [Client(0, 40, epochs=3, shift=0.0), Client(1, 30, epochs=2, shift=0.1), Client(2, 5, shift=0.2)]
    assert [len(client.order()) for client in clients] == [12, 6, 1]
    for client, result in zip(clients, stack(model, shape, clients), strict=True):
        expected, trained = alone(model, shape, client)
        assert distance(model_of(result), expected) < 1e-5 * trained.n_steps
        assert result[1].n_steps == trained.n_steps  # type: ignore[index]


def test_dropout_draws_from_each_devices_own_stream() -> None:
    """The masks are the exact path's, for which torch's default generator has the same seed."""
    model, shape = made("odd"), (1, 7, 9)
    clients = [Client(0, 24), Client(1, 20), Client(2, 9)]
    for client, result in zip(clients, stack(model, shape, clients), strict=True):
        assert distance(model_of(result), alone(model, shape, client)[0]) < 2e-5


WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 5, "padding": 2, "bias": False},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": (2, 3), "padding": "same", "bias": False},
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("how", [*WINDOWS, {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 2}], ids=str)
def test_the_convolutions_of_gpus_are_the_ones_of_each_device(how: dict[str, Any]) -> None:
    """On the CPU, where all can be computed, in 64 bits."""
    places, noise = Places(3, 16), seeded(0)
    layer = nn.Conv2d(4, 6, **how, dtype=torch.float64)
    stacked = StackedConv2d(layer, places)
    draw = partial(torch.randn, generator=noise, dtype=torch.float64, requires_grad=True)
    x, weight = draw(48, 4, 9, 8), draw(3, *layer.weight.shape)
    tensors = [x, weight] if layer.bias is None else [x, weight, draw(3, 6)]
    shift = tensors[2] if len(tensors) > 2 else None
    each = stacked.of_each(x, weight, shift)
    assert each.shape == layer(x).shape
    gradients = torch.autograd.grad(each.square().sum(), tensors)
    for way in (stacked.grouped, *([] if "groups" in how else [stacked.in_windows])):
        made = way(x, weight, shift)
        assert torch.allclose(made, each, rtol=1e-10, atol=1e-10)
        for one, other in zip(torch.autograd.grad(made.square().sum(), tensors), gradients, strict=True):
            assert torch.allclose(one, other, rtol=1e-10, atol=1e-10)


# ---- bits


def layouts(client: Client, others: Sequence[Client]) -> Iterator[list[Client]]:
    """The client alone, at each place beside one other client, and in the midst of all."""
    yield from ([client], [client, others[0]], [others[1], client], [*others[:2], client, *others[2:]])


@pytest.mark.parametrize("compute", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("name", cases(*SMALLER))
def test_bits_depend_on_neither_neighbours_nor_place(name: str, compute: str) -> None:
    model, shape, client = made(name, SMALLER[name]), SMALLER[name], Client(0, 20, shift=0.1)
    others = [Client(1, 23, shift=0.3), Client(2, 24, shift=0.2), Client(3, 13, shift=-1.0)]
    seen = []
    for clients in layouts(client, others):
        ordered = sorted(clients, key=lambda each: -len(each.order()))
        seen.append(model_of(stack(model, shape, clients, compute=torch.device(compute))[ordered.index(client)]))
    assert distance(seen[0], client.start(model.to("cpu"))) > 0
    assert all(bits_equal(each, seen[0]) for each in seen)


@pytest.mark.parametrize("name", cases("cnn_6_16", "cnn_mnist"))
def test_bits_of_the_convolution_of_gpus_do_neither(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU: its products must lie in aligned memory."""
    monkeypatch.setattr(StackedConv2d, "of_each", StackedConv2d.in_windows)
    test_bits_depend_on_neither_neighbours_nor_place(name, "cpu")


def test_finished_and_longer_neighbours_change_no_bit() -> None:
    model, shape = made("kinds"), (1, 8, 8)
    client, longer, shorter = Client(0, 24), Client(1, 24, epochs=3), Client(2, 4)
    (by_itself,) = stack(model, shape, [client])
    assert bits_equal(model_of(stack(model, shape, [client, longer])[1]), model_of(by_itself))
    assert bits_equal(model_of(stack(model, shape, [client, shorter])[0]), model_of(by_itself))


def test_a_device_without_samples_keeps_its_model() -> None:
    model, shape = made("mlp"), (1, 8, 8)
    some, none = Client(0, 24), Client(1, 0)
    found, unchanged = stack(model, shape, [some, none])
    assert bits_equal(model_of(unchanged), none.start(model))
    assert unchanged[1] == Trained(0, 0, 0.0, 0, 0)  # type: ignore[index]
    assert bits_equal(model_of(found), model_of(stack(model, shape, [some])[0]))
    (alone_too,) = stack(model, shape, [none])
    assert bits_equal(model_of(alone_too), none.start(model))


class WithSpare(nn.Module):
    """Has a layer on which the loss does not depend."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def test_a_parameter_without_part_in_the_loss_has_gradient_zero() -> None:
    model, client = WithSpare(), Client(0, 12)
    (result,) = stack(model, (1, 8, 8), [client], weight_decay=0.0)
    start = client.start(model)
    assert torch.equal(model_of(result)["spare.weight"], start["spare.weight"])
    assert not torch.equal(model_of(result)["body.1.weight"], start["body.1.weight"])


def test_rows_depend_on_the_device_alone_and_few_numbers_occur() -> None:
    assert [padded_rows(n, 10) for n in (0, 1, 10)] == [16, 16, 16]
    assert [padded_rows(n, 100) for n in (1, 16, 17, 64, 65, 100)] == [16, 16, 32, 64, 112, 112]
    assert padded_rows(33, 32) == 48  # one sample that was left over joined the last batch


# ---- failures and ends


def test_a_device_whose_loss_is_nan_fails_alone_and_says_at_which_step() -> None:
    model, shape = made("mlp"), (1, 8, 8)
    clients, sick = [Client(0, 24, shift=0.0), Client(2, 24, shift=0.1)], Client(1, 24, shift=math.nan)
    good, bad, also_good = stack(model, shape, [clients[0], sick, clients[1]])
    assert isinstance(bad, NotFinite)
    assert bad.detail == f"the loss is nan at step 2{DIVERGES}"
    for found, expected in zip((good, also_good), stack(model, shape, clients), strict=True):
        assert bits_equal(model_of(found), model_of(expected))
    good, bad = stack(model, shape, [Client(0, 12, shift=0.0), Client(1, 12, shift=math.inf)])
    assert isinstance(bad, NotFinite)
    assert bad.detail == f"features.1.weight is not finite after step 1{DIVERGES}"
    assert bits_equal(model_of(good), model_of(stack(model, shape, [Client(0, 12, shift=0.0)])[0]))


def test_training_stops_between_steps() -> None:
    model, calls = made("mlp"), iter([False, False, True])
    with pytest.raises(Cancelled, match="stopped after 2 steps of 1 devices"):
        stack(model, (1, 8, 8), [Client(0, 40)], stopped=lambda: next(calls))


def test_batches_that_devices_draw_themselves_are_stacked_alike() -> None:
    clients, shape = [Client(0, 24), Client(1, 5)], (1, 8, 8)
    data = [client.samples(shape) for client in clients]
    x = np.concatenate([images for images, _ in data])
    drawn = [Shuffled(labels, client.order()) for client, (_, labels) in zip(clients, data, strict=True)]
    one = list(gathered(drawn, samples_at(x, np.arange(len(x)), CPU), 3, 16, CPU))

    own = [batches(*each, np.arange(client.n), **client.drawing()) for client, each in zip(clients, data, strict=True)]
    other = list(joined(own, 3, 16, CPU))
    assert len(one) == len(other) == 2
    for (images, labels), (others, same_labels) in zip(one, other, strict=True):
        assert torch.equal(labels, same_labels)
        assert torch.equal(images[labels >= 0], others[labels >= 0])
        assert images.shape == others.shape == (48, 1, 8, 8)
    assert (one[1][1] >= 0).sum() == 12


# ---- refusals


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.LayerNorm(4), r"1 \(LayerNorm\) has no stacked form"),
        (nn.BatchNorm1d(4, affine=False), r"1 \(BatchNorm1d\) is no usual batch-norm"),
        (nn.BatchNorm1d(4, momentum=None), r"1 \(BatchNorm1d\) is no usual batch-norm"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), r"1 \(Conv2d\) pads with 'circular'"),
        (nn.GRU(4, 4), r"1 \(GRU\) has no stacked form"),
    ],
)
def test_a_layer_without_a_stacked_form_is_refused_by_name(layer: nn.Module, why: str) -> None:
    with pytest.raises(BadInput, match=f"vectorised: {why}, so it trains one device at a time only") as refused:
        check_layers(nn.Sequential(nn.Flatten(), layer))
    assert refused.value.field == "vectorised"
    model = nn.Sequential(nn.Linear(2, 2))
    model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(BadInput, match=r"the model itself .* has tensors of its own beside its layers"):
        check_layers(model)


def test_each_place_is_aligned_whatever_its_shape_and_a_stack_holds_copies() -> None:
    for shape in ((), (1,), (5, 7), (10,), (3, 5, 5)):
        for dtype in (torch.float32, torch.int64):
            made = empty_stack(3, shape, dtype, CPU)
            assert made.shape == (3, *shape)
            assert made[1].is_contiguous()
            assert made.stride(0) * dtype.itemsize % ALIGNED_BYTES == made.data_ptr() % ALIGNED_BYTES == 0
    own = [torch.full((3,), float(value)) for value in range(2)]
    held = stack_of(own, 3, CPU)
    assert held.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    held.fill_(7)
    assert own[0].tolist() == [0, 0, 0]
