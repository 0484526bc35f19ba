"""Convolutions of many devices as batched matrix products, for a GPU.

A grouped convolution, which says the same, is computed there group by group by kernels made for one large group. Here
each output position has a row with the inputs under its window, so that a device's convolution is one product of these
rows with its weights, and all devices' convolutions are one batched product.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shared.training.stacked.memory import empty_stack


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution without groups.

    Attributes:
        size, stride, dilation: of a window, by height and width.
        padding: zeros at the left, right, top and bottom, as `functional.pad` takes them.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    def padded(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, height, width, channels), padded with zeros, contiguous."""
        return functional.pad(x, self.padding).permute(0, 2, 3, 1).contiguous()

    def places(self, padded: Tensor) -> tuple[int, int]:
        """Height and width of the outputs of padded images (n, height, width, channels)."""
        sides = zip(padded.shape[1:3], self.size, self.stride, self.dilation, strict=True)
        high, wide = ((side - step * (size - 1) - 1) // stride + 1 for side, size, stride, step in sides)
        return high, wide

    def under(self, padded: Tensor) -> Tensor:
        """The inputs under each window: (n, height, width, channels) -> (n, high, wide, *size, channels), a view."""
        n, *_, channels = padded.shape
        of_image, of_row, of_column, of_channel = padded.stride()
        moves = [of_row * self.stride[0], of_column * self.stride[1]]
        within = [of_row * self.dilation[0], of_column * self.dilation[1]]
        shape = (n, *self.places(padded), *self.size, channels)
        return padded.as_strided(shape, (of_image, *moves, *within, of_channel))

    def add_under(self, padded: Tensor, values: Tensor) -> None:
        """Add to each input what the windows over it have for it, in a fixed order of the places within a window."""
        high, wide = self.places(padded)
        for i, j in product(*map(range, self.size)):
            top, left = i * self.dilation[0], j * self.dilation[1]
            rows = slice(top, top + self.stride[0] * (high - 1) + 1, self.stride[0])
            columns = slice(left, left + self.stride[1] * (wide - 1) + 1, self.stride[1])
            padded[:, rows, columns] += values[:, :, :, i, j]

    def inner(self, padded: Tensor) -> Tensor:
        """The part of padded images (n, height, width, channels) that is no padding, as (n, channels, ...)."""
        left, right, top, bottom = self.padding
        high, wide = padded.shape[1] - top - bottom, padded.shape[2] - left - right
        return padded[:, top : top + high, left : left + wide].permute(0, 3, 1, 2)


class StackedConvolution(torch.autograd.Function):
    """(places * rows, in, height, width), (places, out, in, *size) -> (places * rows, out, ...), each with its weights.

    The rows of windows are made again for the gradient instead of being kept: they hold each input as often as there
    are windows over it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.windows = windows
        padded = windows.padded(x)
        rows, flat = _rows(windows, padded, len(weight)), _flat(weight)
        made = torch.bmm(rows, flat) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, flat)
        return made.view(len(x), *windows.places(padded), -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), windows = ctx.saved_tensors, ctx.windows
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        padded = windows.padded(x)
        above = outer[0].permute(0, 2, 3, 1).reshape(len(weight), -1, weight.shape[1])  # (places, positions, out)
        into_x = into_weight = None
        if of_weight:
            flat = empty_stack(len(weight), (weight[0, 0].numel(), weight.shape[1]), weight.dtype, weight.device)
            torch.bmm(_rows(windows, padded, len(weight)).mT, above, out=flat)
            into_weight = flat.view(_by_window(weight).shape).permute(0, 4, 3, 1, 2).contiguous()
        if of_x:
            values = torch.bmm(above, _flat(weight).mT).view(windows.under(padded).shape)
            into_padded = torch.zeros_like(padded)
            windows.add_under(into_padded, values)
            into_x = windows.inner(into_padded)
        return into_x, into_weight, above.sum(1) if of_bias else None, None


def _rows(windows: Windows, padded: Tensor, places: int) -> Tensor:
    """The inputs under each window as a row, (places, positions, size * in)."""
    under = windows.under(padded)
    n_inputs = under.shape[3] * under.shape[4] * under.shape[5]
    return under.reshape(places, -1, n_inputs)


def _flat(weight: Tensor) -> Tensor:
    """(places, out, in, *size) -> (places, size * in, out), in aligned memory, as the bits of products depend on it."""
    by_window = _by_window(weight)
    flat = empty_stack(len(weight), (weight[0, 0].numel(), weight.shape[1]), weight.dtype, weight.device)
    flat.view(by_window.shape).copy_(by_window)
    return flat


def _by_window(weight: Tensor) -> Tensor:
    """(places, out, in, *size) -> (places, *size, in, out), a view."""
    return weight.permute(0, 3, 4, 2, 1)
