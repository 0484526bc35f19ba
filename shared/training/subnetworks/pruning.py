"""How much the units of a network count, and what is left of it when some are left out (ES-AFL, section 3.4).

A channel counts as much as its batch-norm scales it, |gamma|; a neuron, and a channel without batch-norm, as much as
its activation gives: the mean of absolute outputs over images and pixels. Of a group that several layers make
(residuals) it is the mean over these.
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
    """What a gene is of: the units of a group, or the weights of a linear layer."""

    kind: Literal["units", "weights"]
    name: str


def genes_of(units: Units) -> tuple[Gene, ...]:
    """The genes of a network's chromosomes, from input to output."""
    found: dict[Gene, None] = {}
    for layer in units.layers:
        if layer.group is not None:
            found.setdefault(Gene("units", layer.group))
        if layer.kind == "linear":
            found.setdefault(Gene("weights", layer.name))
    return tuple(found)


def rates_of(units: Units, chromosome: Sequence[float], of: str) -> dict[str, float]:
    """By name, the rates of one kind of gene."""
    return {gene.name: rate for gene, rate in zip(genes_of(units), chromosome, strict=True) if gene.kind == of}


def n_pruned(rate: float, n: int) -> int:
    """How many of n are left out at this rate: floor(rate * n)."""
    return math.floor(rate * n + 1e-9)  # 0.29 of 100 is 29, whatever floating point makes of it


def importance(model: nn.Module, units: Units, images: Iterable[Tensor]) -> dict[str, Tensor]:
    """By group, how much each of its units counts.

    Args:
        model: not changed but for its layout in memory; passed through in evaluation mode, where a group needs that.
        units: of the model.
        images: batches of them.
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
    """By layer, each unit's mean absolute output."""
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


def kept_units(counts: Mapping[str, Tensor], rates: Mapping[str, float]) -> dict[str, Tensor]:
    """By group, the units that are kept where this share of the least important ones is left out, at least one.

    Of units that count the same the last are left out first, so that what is kept does not depend on anything else.

    Args:
        counts: what `importance` says.
        rates: by group, in [0, 1]; a group that is not named is kept whole.
    """
    found: dict[str, Tensor] = {}
    for group, each in counts.items():
        n_kept = max(len(each) - n_pruned(rates.get(group, 0.0), len(each)), 1)
        best_first = torch.sort(each, descending=True, stable=True).indices
        found[group] = best_first[:n_kept].sort().values
    return found


def magnitude_mask(weights: Tensor, rate: float) -> Tensor:
    """Where the weights are that stay when this share of them, the least by magnitude, is left out; bool.

    Of equal ones the last are left out first.
    """
    best_first = torch.sort(weights.detach().abs().flatten(), descending=True, stable=True).indices
    stay = torch.zeros(weights.numel(), dtype=torch.bool, device=weights.device)
    stay[best_first[: weights.numel() - n_pruned(rate, weights.numel())]] = True
    return stay.reshape(weights.shape)
