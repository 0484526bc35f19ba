"""Gradients of dense networks without autograd: autograd's bits, and which networks are dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared.core.errors import NotFinite
from shared.training import loop
from shared.training.dense import dense_gradients
from shared.training.description import Classes
from shared.training.loop import Trained, train
from shared.training.models.classifier import Classifier
from shared.training.models.networks import mlp

SIDE, N_CLASSES = 6, 5
WIDTHS: dict[str, tuple[int, ...]] = {"linear": (), "one layer": (7,), "three layers": (9, 4, 8)}


def dense(*widths: int) -> Classifier:
    """A network with hidden layers of these widths, whose second hidden unit is dead."""
    torch.manual_seed(len(widths))
    modules: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((SIDE**2, *widths), widths, strict=False):
        modules += [nn.Linear(before, after), nn.ReLU()]
    made = Classifier(nn.Sequential(*modules), widths[-1] if widths else SIDE**2, N_CLASSES)
    if widths:
        with torch.no_grad():
            modules[1].bias[1] = -1e3  # type: ignore[operator]
    return made


def drawn(sizes: tuple[int, ...] = (32, 32, 5, 1)) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(n, 1, SIDE, SIDE, generator=generator), torch.randint(N_CLASSES, (n,), generator=generator))
        for n in sizes
    ]


def shrink(parameters: list[Tensor], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        gradient.add_(parameter, alpha=0.1)


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"correct": shrink}],
    ids=["sgd", "momentum and decay", "corrected"],
)
def test_training_has_the_bits_of_autograd(
    widths: tuple[int, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> tuple[dict[str, Tensor], Trained]:
        model = dense(*widths)
        found = train(model, drawn() * 3, lr=0.1, target=Classes(N_CLASSES), **options)
        assert all(parameter.grad is None for parameter in model.parameters())
        return model.state_dict(), found

    used = []

    def counted(model: nn.Module) -> Callable[..., Any] | None:
        used.append(dense_gradients(model))
        return used[-1]

    monkeypatch.setattr(loop, "dense_gradients", counted)
    ours, ours_found = trained()
    assert used[0] is not None
    monkeypatch.setattr(loop, "dense_gradients", lambda _: None)
    theirs, theirs_found = trained()
    assert ours_found == theirs_found
    assert ours_found.loss > 0
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def tied() -> nn.Module:
    first, second = nn.Linear(36, 36), nn.Linear(36, 36)
    second.weight = first.weight
    return Classifier(nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU()), 36, N_CLASSES)


def chain(*modules: nn.Module) -> nn.Module:
    return Classifier(nn.Sequential(*modules), 7, N_CLASSES)


CHANGES: dict[str, Callable[[Classifier], object]] = {
    "a hook": lambda model: model.features.register_forward_hook(lambda *_: None),
    "a hook of a parameter": lambda model: model.head.weight.register_hook(lambda gradient: 2 * gradient),
    "a hook before backward": lambda model: model.head.register_full_backward_pre_hook(lambda *_: None),
    "a frozen parameter": lambda model: model.head.weight.requires_grad_(False),
    "a parameter of its own": lambda model: model.register_parameter("scale", nn.Parameter(torch.ones(1))),
    "a further module": lambda model: model.register_module("more", nn.Identity()),
    "a further module of the features": lambda model: model.features.register_module("more", nn.Identity()),
    "a module of the head": lambda model: model.head.register_module("more", nn.Identity()),
    "float64": lambda model: model.double(),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "a parameter that two layers share": tied,
    "dropout": lambda: chain(nn.Flatten(), nn.Linear(36, 7), nn.ReLU(), nn.Dropout()),
    "another activation": lambda: chain(nn.Flatten(), nn.Linear(36, 7), nn.Tanh()),
    "no activation": lambda: chain(nn.Flatten(), nn.Linear(36, 7)),
    "no bias": lambda: chain(nn.Flatten(), nn.Linear(36, 7, bias=False), nn.ReLU()),
    "no flatten": lambda: chain(nn.Linear(36, 7), nn.ReLU()),
    "a convolution": lambda: chain(nn.Flatten(), nn.Conv1d(1, 1, 1), nn.ReLU()),
    "a class of one's own": lambda: type("Own", (Classifier,), {})(nn.Sequential(nn.Flatten()), 36, N_CLASSES),
    "no classifier": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, N_CLASSES)),
}


@pytest.mark.parametrize("name", [*CHANGES, *OTHERS])
def test_other_networks_are_left_to_autograd(name: str) -> None:
    model = OTHERS[name]() if name in OTHERS else dense(7)
    CHANGES.get(name, id)(model)  # type: ignore[arg-type]
    assert dense_gradients(model) is None


def test_the_zoos_mlp_is_dense_and_its_infinite_loss_is_named() -> None:
    model = mlp((1, SIDE, SIDE), N_CLASSES)
    assert dense_gradients(model) is not None
    (x, y), *_ = drawn()
    with pytest.raises(NotFinite, match="the loss is nan at step 1"):
        train(model, [(x * float("inf"), y)], lr=0.1, target=Classes(N_CLASSES))
