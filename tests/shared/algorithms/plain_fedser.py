"""A reference FedSER step: physically smaller copies of the network, torch's losses and SGD, and KL in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.loop import Objective, batches
from tests.narrow_copy import POOLING, leading, narrow_copy, pixels_read
from tests.shared.algorithms import flat

Array = npt.NDArray[np.float64]


def stream(experiment: Experiment, seat: int, purpose: str) -> torch.Generator:
    """Returns the documented stream of a seat in its first visit."""
    return torch.Generator().manual_seed(flat.stream(experiment.spec.seed, f"seat {seat}", 1, 0, 0, purpose))


def local(experiment: Experiment, seat: int) -> TensorMap:
    """Returns one seat's first local training with resolutions only; each KL's gradient comes from a smaller copy."""
    spec = experiment.spec
    wanted, data = spec.model, experiment.data
    model = models.build(wanted.name, data.sample, data.target, 0, wanted.projection)
    models.write_state(model, experiment.initial)
    pixels = pixels_read(model, torch.zeros(2, *data.sample.shape))
    optimiser = torch.optim.SGD(model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    drawn = batches(
        data.train_x,
        data.train_y,
        experiment.population.seats[seat].train,
        batch_size=spec.batch_size,
        generator=stream(experiment, seat, "batches"),
        epochs=spec.local_epochs,
    )
    enhanced = objective(experiment, pixels, stream(experiment, seat, "widths"), stream(experiment, seat, "views"))
    model.train()
    for x, y in drawn:
        optimiser.zero_grad()
        enhanced(model, x, y)
        optimiser.step()
    return models.read_state(model)


def objective(
    experiment: Experiment, pixels: dict[str, int], widths: torch.Generator, views: torch.Generator, bn: str = "batch"
) -> Objective:
    """Returns the loss L of a batch, which adds its gradients to the model's; views are resolutions."""
    p, pools = _params(experiment), experiment.spec.model.name in POOLING

    def enhanced(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x)
        loss = functional.cross_entropy(logits, y)
        loss.backward()
        soft, value = logits.detach().softmax(1), loss.detach()
        for i in range(p.n):
            width = p.alpha
            if p.widths == "uniform" or i:
                width += (1 - p.alpha) * torch.rand((), generator=widths, dtype=torch.float64).item()
            small = narrow_copy(model, width, pixels).train(bn == "batch")
            found = small(_seen(x, views, pools=pools, corners=p.align_corners)).log_softmax(1)
            kl = p.mu * (soft * (soft.log() - found)).sum() / len(x)
            kl.backward()
            value += kl.detach()
            _add_gradients(model, small)
        return value, logits

    return enhanced


def _params(experiment: Experiment) -> Any:
    return experiment.local_params


def _seen(x: Tensor, views: torch.Generator, *, pools: bool, corners: bool = False) -> Tensor:
    """Returns images at a random resolution, scaled back for networks that flatten without pooling."""
    side = x.shape[-1]
    ratio = (32, 28, 24, 20)[int(torch.randint(4, (), generator=views))] / 32
    size = int(side * ratio + 0.5)
    if size == side:
        return x
    small = functional.interpolate(x, (size, size), mode="bilinear", align_corners=corners)
    return small if pools else functional.interpolate(small, (side, side), mode="bilinear", align_corners=corners)


def _add_gradients(model: torch.nn.Module, small: torch.nn.Module) -> None:
    theirs = dict(small.named_parameters())
    for name, parameter in model.named_parameters():
        part = theirs[name].grad
        assert part is not None
        assert parameter.grad is not None
        leading(parameter.grad, part).add_(part)


# ---- softmax regression, by hand


def softmax(logits: Array) -> Array:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Array = odds / odds.sum(axis=1, keepdims=True)
    return found


def bilinear(old: int, new: int, *, corners: bool) -> Array:
    """Returns the weights of a resampling that aligns the corner pixels' centres, else their edges, (new, old)."""
    found = np.zeros((new, old))
    for pixel in range(new):
        place = pixel * (old - 1) / (new - 1) if corners else (pixel + 0.5) * old / new - 0.5
        place = min(max(place, 0.0), old - 1.0)
        below = min(int(place), old - 2)
        found[pixel, below], found[pixel, below + 1] = below + 1 - place, place - below
    return found


def softmax_regression(experiment: Experiment, seat: int) -> tuple[Array, Array]:
    """Returns weight and bias after full-batch steps on L; KL's gradient by the logits is (q(T(x)) - p(x)) / batch."""
    p, seats = _params(experiment), experiment.population.seats[seat].train
    images = (experiment.data.train_x[seats] / 255 - 0.5) / 0.5
    y, side = np.asarray(experiment.data.train_y)[seats], images.shape[1]
    x = images.reshape(len(y), -1)
    views = stream(experiment, seat, "views")
    weight, bias = (experiment.initial[name].double().numpy() for name in ("head.weight", "head.bias"))
    for _ in range(experiment.spec.local_epochs):
        g_weight, g_bias = flat.softmax_gradient(weight, bias, x, y)
        soft = softmax(x @ weight.T + bias)
        for _ in range(p.n):
            size = int(side * (32, 28, 24, 20)[int(torch.randint(4, (), generator=views))] / 32 + 0.5)
            there, back = ((side, size), (size, side))
            across = np.eye(side)
            if size != side:
                across = bilinear(*back, corners=p.align_corners) @ bilinear(*there, corners=p.align_corners)
            u = np.einsum("ih,nhw,jw->nij", across, images, across).reshape(len(y), -1)
            errors = (softmax(u @ weight.T + bias) - soft) / len(y)  # (n, classes)
            g_weight, g_bias = g_weight + p.mu * errors.T @ u, g_bias + p.mu * errors.sum(axis=0)
        weight, bias = weight - experiment.spec.lr * g_weight, bias - experiment.spec.lr * g_bias
    return weight, bias
