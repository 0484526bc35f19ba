"""Batch-norm statistics of a model as it is, for a model whose running statistics belong to other networks.

A model that was put together from sub-networks holds averages of their running statistics, which do not fit its own
activations. To retake them, every owner of data computes `moments`; the mean of these maps, weighted by the number of
samples, becomes the model's statistics by `statistics_of`. (As HeteroFL's static batch-norm does after training:
E. Diao, J. Ding, V. Tarokh, ICLR 2021.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MEAN, VARIANCE = "running_mean", "running_var"


def statistics_in(names: Iterable[str]) -> frozenset[str]:
    """Returns those names of tensors that are running means and variances of batch-norm."""
    return frozenset(name for name in names if name.rpartition(".")[2] in (MEAN, VARIANCE))


def moments(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Returns the mean and the mean square of what each batch-norm receives, float32, (channels,).

    They have the names of the running means and variances. A batch is normalised by its own statistics, as in training;
    no tensor of the model changes.

    Args:
        model: the model; its other layers compute as in evaluation.
        batches: inputs of the model, (batch, ...), two samples or more each.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    sums: dict[str, list[Tensor]] = {name: [] for name in layers}

    def look(name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].detach().to(torch.float64).transpose(0, 1).flatten(1)  # (channels, values)
        found = (values.sum(1), values.square().sum(1), torch.full_like(values[:, 0], values.shape[1]))
        sums[name].append(torch.stack(found))

    was_training = {module: module.training for module in model.modules()}
    tracked = {layer: layer.track_running_stats for layer in layers.values()}
    handles = [layer.register_forward_pre_hook(partial(look, name)) for name, layer in layers.items()]
    model.eval()
    for layer in layers.values():
        layer.training, layer.track_running_stats = True, False
    try:
        with torch.no_grad():
            for batch in batches if layers else ():
                model(batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in was_training.items():
            module.training = training
        for layer, tracks in tracked.items():
            layer.track_running_stats = tracks
    found: dict[str, Tensor] = {}
    for name, parts in sums.items():
        first, second, count = torch.stack(parts).sum(0)
        found[f"{name}.{MEAN}"] = (first / count).to(torch.float32)
        found[f"{name}.{VARIANCE}"] = (second / count).to(torch.float32)
    return found


def statistics_of(moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns running means and variances from mean moments; a variance is that of all values, E[x^2] - E[x]^2."""
    found = dict(moments)
    for name in moments:
        layer, _, kind = name.rpartition(".")
        if kind == VARIANCE:
            found[name] = (moments[name] - moments[f"{layer}.{MEAN}"].square()).clamp(min=0)
    return found
