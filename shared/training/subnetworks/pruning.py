"""Importance of a network's units, and pruning of units and weights (ES-AFL, section 3.4).

The importance of a channel is its batch-norm scale |gamma|. The importance of a neuron, or of a channel without
batch-norm, is the mean absolute output of its activation over images and pixels. The importance of a unit that several
layers produce (residuals) is the mean over these layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from shared.training.loop import channels_last
from shared.training.subnetworks.units import Units, WeightedLayer


class Gene(NamedTuple):
    """What a gene prunes: the units of a group, or the weights of a linear layer."""

    kind: Literal["units", "weights"]
    name: str


def genes_of(units: Units) -> tuple[Gene, ...]:
    """Returns the genes of a network's chromosomes, from input to output."""
    found: dict[Gene, None] = {}
    for layer in units.layers:
        if layer.group is not None:
            found.setdefault(Gene("units", layer.group))
        if layer.kind == "linear":
            found.setdefault(Gene("weights", layer.name))
    return tuple(found)


def rates_of(units: Units, chromosome: Sequence[float], of: str) -> dict[str, float]:
    """Returns the pruning rates of the genes of one kind, by name."""
    return {gene.name: rate for gene, rate in zip(genes_of(units), chromosome, strict=True) if gene.kind == of}


def n_pruned(rate: float, n: int) -> int:
    """Returns how many of n are pruned at this rate: floor(rate * n)."""
    return math.floor(rate * n + 1e-9)  # 0.29 of 100 is 29 despite rounding errors


def importance(model: nn.Module, units: Units, images: Iterable[Tensor]) -> dict[str, Tensor]:
    """Returns the importance of each unit, by group.

    Args:
        model: only its memory layout changes; it is evaluated on the images if a group's importance depends on them.
        units: the model's units.
        images: batches of float images, (batch, channels, height, width).
    """
    with_layout = channels_last(model)
    parameters = dict(model.named_parameters())
    found: dict[str, Tensor] = {}
    watched: dict[str, list[WeightedLayer]] = {}
    for group in units.groups:
        makers = units.makers(group)
        if all(layer.kind == "convolution" and layer.scale for layer in makers):
            scales = [parameters[layer.scale].detach().abs() for layer in makers if layer.scale]
            found[group] = torch.stack(scales).mean(0)
        else:
            watched[group] = makers
    seen = _mean_activations(
        model, [layer for makers in watched.values() for layer in makers], map(with_layout, images)
    )
    found |= {group: torch.stack([seen[layer.name] for layer in makers]).mean(0) for group, makers in watched.items()}
    return {group: found[group].cpu() for group in units.groups}


def _mean_activations(model: nn.Module, layers: list[WeightedLayer], images: Iterable[Tensor]) -> dict[str, Tensor]:
    """Returns the mean absolute output of each unit, by layer."""
    weights = {layer.name: model.get_parameter(f"{layer.name}.weight") for layer in layers}
    sums = {name: torch.zeros(len(w), dtype=torch.float64, device=w.device) for name, w in weights.items()}

    def look(name: str, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        each = out.detach().abs().flatten(2).mean(2) if out.dim() > 2 else out.detach().abs()  # (batch, units)
        sums[name] += each.sum(0, dtype=torch.float64)

    handles = [
        model.get_submodule(layer.output_module).register_forward_hook(partial(look, layer.name)) for layer in layers
    ]
    was_training, n = model.training, 0
    model.eval()
    try:
        with torch.no_grad():
            for batch in images if layers else ():
                model(batch)
                n += len(batch)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return {name: total / max(n, 1) for name, total in sums.items()}


def kept_units(
    counts: Mapping[str, Tensor], rates: Mapping[str, float], orders: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Returns the units that are kept, by group, when the least important ones are pruned; at least one is kept.

    Of equally important units the last are pruned first, so that the result is deterministic.

    Args:
        counts: importance of the units by group, see `importance`.
        rates: pruning rates in [0, 1] by group; a group that is not named is not pruned.
        orders: by group, all its units in the order by which the last of equals is found; None means by their numbers.
    """
    found: dict[str, Tensor] = {}
    for group, each in counts.items():
        n_kept = max(len(each) - n_pruned(rates.get(group, 0.0), len(each)), 1)
        order = torch.arange(len(each)) if orders is None else orders[group]
        best_first = order[torch.sort(each[order], descending=True, stable=True).indices]
        found[group] = best_first[:n_kept].sort().values
    return found


def magnitude_mask(weights: Tensor, rate: float) -> Tensor:
    """Returns a mask, bool, of the weights that are kept when this share of the smallest magnitudes is pruned.

    Of equal magnitudes the last are pruned first.
    """
    best_first = torch.sort(weights.detach().abs().flatten(), descending=True, stable=True).indices
    stay = torch.zeros(weights.numel(), dtype=torch.bool, device=weights.device)
    stay[best_first[: weights.numel() - n_pruned(rate, weights.numel())]] = True
    return stay.reshape(weights.shape)
