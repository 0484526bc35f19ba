"""FedSER.

M. Zhang, M. Liang, Z. Xue, Z. Guan, Z. Pan, Z. Zhao: Regularization Optimization Algorithm for Heterogeneous Data
Federated Learning Model Based on Structure Enhancement. Pattern Recognition and Artificial Intelligence, 2023, in
Chinese; algorithms 1 and 2. It is GradAug (T. Yang, S. Zhu, C. Chen: GradAug. NeurIPS 2020) as a client's training.

    F_w            the sub-network of width w: the first ceil(w c) of the c channels of every layer, with F's weights
    w_i            ~ U[alpha, 1], i = 1..n                                                            algorithm 1
    T_i            a random transform of the batch                                                    algorithm 1
    L              = CE(F(x), y) + mu sum_i KL(F(x) || F_w_i(T_i(x)))                                 section 2.3

A device minimises L instead of CE, with one SGD step for each mini-batch. Everything else is FedAvg. Other algorithms
can train their devices with this objective too (`algorithm: {name: bofl, local: fedser}`). n = 0 or mu = 0 is FedAvg,
bit for bit: widths and transforms draw from random streams of their own.

Deviations and readings (where the paper is silent, GradAug is followed):

- Section 2.3 may be read as training F first and the sub-networks after it; algorithm 1 adds the losses up and
  back-propagates once. Here each term is back-propagated as soon as it is computed: the gradients add up to the same,
  in the memory of one pass.
- mu weights the sum over i, as in the equation; algorithm 1 omits it. KL is summed over classes and averaged over the
  batch, at temperature 1. F(x) is a soft label: no gradient flows through it.
- Public code of GradAug always takes one sub-network of the least width, w_1 = alpha (half of the sandwich rule, J. Yu,
  T. Huang: Universally Slimmable Networks. ICCV 2019; the other half is F), and resizes images by the centres of their
  corner pixels. The paper mentions neither; `widths: sandwich` and `align_corners` do so.
- Image channels and classes are never cut; all other units are, those of a projection head included
  (`shared/training/subnetworks/width_slices.py`). The first channels are kept, so that larger sub-networks contain
  smaller ones; their number is rounded up (GradAug: to the nearest).
- "Fixed" batch-norm means that sub-networks do not update running statistics. They normalise with the statistics of the
  batch (bn "batch") or with the running statistics of the kept channels ("running").
- T_i is by default a random resolution, 32, 28, 24 or 20 of 32 pixels for the whole batch, and the network is fed at
  that size; if it takes only one size, the image is scaled back. Crop, rotation and flip are options. F gets x itself.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from statistics import fmean
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import nn
from torch.nn import functional

from shared.core.validation import no_repeats
from shared.federation.hooks import Algorithm, Context, Footprint, Objective, Record, Tensor, operations
from shared.training.data.augmentation import View, other_sizes, resized, view
from shared.training.subnetworks.width_slices import Statistics, accepts_shape, narrowed


class Params(Record):
    """Parameters of L; the defaults are the paper's.

    Attributes:
        mu: weight of the sum of the KL terms.
        n: number of sub-networks in a step.
        alpha: the smallest width.
        widths: the widths of a step: `uniform`, n draws from [alpha, 1]; `sandwich`, alpha and n - 1 draws.
        transforms: the transforms of which T_i is composed; without any, sub-networks get the image itself.
        align_corners: whether resized images have their corner pixels where the original has them.
        bn: the statistics with which batch-norm normalises in a sub-network.
    """

    mu: Annotated[float, Field(ge=0, le=1e3)] = 1.75
    n: Annotated[int, Field(ge=0, le=100)] = 2
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.8
    widths: Literal["uniform", "sandwich"] = "uniform"
    transforms: Annotated[tuple[View, ...], Field(max_length=4), AfterValidator(no_repeats)] = ("resolution",)
    align_corners: bool = False
    bn: Statistics = "batch"


def structure_enhanced(ctx: Context[Params]) -> Objective | None:
    """Returns L, or None if it is the cross-entropy."""
    p = ctx.params
    if not p.mu or not p.n:
        return None
    widths, views = ctx.rng("widths"), ctx.rng("views")
    fits: dict[tuple[int, ...], bool] = {}

    def transformed(model: nn.Module, x: Tensor) -> Tensor:
        """Returns T_i(x), in a size that the network takes."""
        seen = view(x, p.transforms, views, align_corners=p.align_corners)
        shape = tuple(seen.shape)
        if shape not in fits:
            fits[shape] = shape == x.shape or accepts_shape(model, shape)
        return seen if fits[shape] else resized(seen, (x.shape[2], x.shape[3]), align_corners=p.align_corners)

    def width_of(i: int) -> float:
        """Returns w_i, i = 0..n-1."""
        if p.widths == "sandwich" and i == 0:
            return p.alpha
        return p.alpha + (1 - p.alpha) * torch.rand((), generator=widths, dtype=torch.float64).item()

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x)
        loss = _back(functional.cross_entropy(logits, y))
        logits = logits.detach()
        soft = functional.log_softmax(logits, dim=1)  # (batch, classes)
        for i in range(p.n):
            seen = transformed(model, x)
            with narrowed(model, width_of(i), p.bn):
                found = functional.log_softmax(model(seen), dim=1)
            kl = functional.kl_div(found, soft, reduction="batchmean", log_target=True)
            loss += _back(p.mu * kl)  # section 2.3
        return loss, logits

    return objective


def _back(term: Tensor) -> Tensor:
    """Adds the gradient of one term of the loss to those of the parameters; returns the term's value."""
    term.backward()  # type: ignore[no-untyped-call]
    return term.detach()


def mean_operations(p: Params, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Returns the operations of a step: the network's, and those of n sub-networks, means over widths and sizes."""
    whole = (x.shape[2], x.shape[3])
    sizes = other_sizes(*whole) if "resolution" in p.transforms else [whole]

    @cache
    def of_sub_network(width: float, size: tuple[int, int]) -> int:
        seen = resized(x, size)
        with narrowed(model, width, p.bn):
            return operations(lambda: functional.cross_entropy(model(seen), y))

    own = operations(lambda: functional.cross_entropy(model(x), y))
    if not p.mu or not p.n:
        return own
    fed = [size if accepts_shape(model, (*x.shape[:2], *size)) else whole for size in sizes]

    def mean_of(*widths: float) -> float:
        return fmean(of_sub_network(width, size) for width, size in product(widths, fed))

    least = [mean_of(p.alpha)] if p.widths == "sandwich" else []
    return own + sum(least) + (p.n - len(least)) * mean_of(*_two_widths(p.alpha))


def _two_widths(alpha: float) -> tuple[float, float]:
    """Returns two Gauss points, whose mean cost is that over U[alpha, 1] for costs quadratic in the width."""
    middle, half = (1 + alpha) / 2, (1 - alpha) / 2
    return middle - half / math.sqrt(3), middle + half / math.sqrt(3)


ALGORITHM = Algorithm(
    name="fedser",
    paper="Zhang et al.: Regularization Optimization Algorithm for Heterogeneous Data Federated Learning Model Based "
    "on Structure Enhancement. Pattern Recognition and Artificial Intelligence 2023",
    params=Params,
    samples="images",
    targets=("classes",),
    objective=structure_enhanced,
    footprint=Footprint(flops=mean_operations),
)
