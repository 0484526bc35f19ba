"""The codecs: pure functions from a float32 tensor to its short form, and back.

    fp16      half precision                                 2 bytes an element
    int8      q = round(x / s), s = max |x| / 127            1 byte, and 4
    ternary   w * t, t in {-1, 0, 1}                         2 bits, and 4 bytes
    topk      the elements that are largest in magnitude     8 bytes for each of these

With x' for what is decoded, element by element

    fp16      |x - x'| <= max(2^-11 |x|, 2^-25)
    int8      |x - x'| <= s / 2 (and what float32 rounds)
    ternary   x' has the sign of x or is 0; w, the mean of the |x| beyond the threshold, is nearest to x of all
    topk      x' is x or 0; |x - x'|^2 <= (1 - k / n) |x|^2 over the whole tensor (Stich et al. 2018, definition 2.1)

fp16 and ternary leave alone what they decoded before; int8 up to what float32 rounds.

Sources: F. Li, B. Zhang, B. Liu: Ternary Weight Networks, arXiv 1605.04711 (0.7 times the mean of |x|, and w).
S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with Memory, NeurIPS 2018 (top-k). int8 is the usual symmetric
quantisation of a whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.codecs.coded import FORMS, Coded, Form, Parts
from shared.errors import NotFinite, OutOfBound, WireError

MOST_FP16 = 65_504.0
LEVELS = 127
PER_BYTE = 4
"""Ternary digits in a byte: two bits each, the first in the lowest; 0 is 0, 1 is 1, 2 is -1, and 3 nothing."""


# ---- encode


def fp16(x: Tensor, what: str = "it") -> Coded:
    """In half precision.

    Args:
        x: float32, any shape.
        what: its name, for errors.

    Raises:
        NotFinite, OutOfBound, WireError: it holds what the codec cannot carry, or is of another dtype.
    """
    flat, most = _flat(x, "fp16", what)
    if most > MOST_FP16:
        raise OutOfBound(f"{what} holds {most:g}, fp16 carries up to {MOST_FP16:g}")
    return Coded("fp16", x.shape, (flat.half(),))


def int8(x: Tensor, what: str = "it") -> Coded:
    """As whole numbers of steps of a 127th of its largest magnitude; see `fp16`."""
    flat, most = _flat(x, "int8", what)
    scale = torch.tensor(most / LEVELS, dtype=torch.float32)
    steps = (flat / scale).round_().clamp_(-LEVELS, LEVELS) if scale > 0 else torch.zeros_like(flat)
    return Coded("int8", x.shape, (steps.to(torch.int8), scale))


def ternary(x: Tensor, what: str = "it", *, threshold: float = 0.7) -> Coded:
    """As one magnitude with the signs of what is beyond the threshold, a multiple of the mean magnitude; see `fp16`."""
    flat, _ = _flat(x, "ternary", what)
    return ternary_of(*_ternary(flat, threshold * mean_magnitude(flat)), x.shape)


def ternary_of(signs: Tensor, scale: Tensor, shape: Sequence[int]) -> Coded:
    """`scale * signs` in ternary form.

    Args:
        signs: -1, 0 or 1, any dtype, as many as the shape holds.
        scale: float32, no dimensions, not negative.
        shape: of the tensor that it stands for.
    """
    digits = torch.where(signs < 0, 2, signs).reshape(-1).to(torch.uint8)
    padded = torch.nn.functional.pad(digits, (0, -len(digits) % PER_BYTE)).view(-1, PER_BYTE)
    packed = padded[:, 0] | (padded[:, 1] << 2) | (padded[:, 2] << 4) | (padded[:, 3] << 6)
    return Coded("ternary", shape, (packed, scale))


def topk(x: Tensor, what: str = "it", *, fraction: float) -> Coded:
    """Only the share `fraction` of its elements (at least one) that is largest in magnitude; of equals the first.

    See `fp16`.
    """
    flat, _ = _flat(x, "topk", what)
    return Coded("topk", x.shape, (kept := largest(flat, n_kept(len(flat), fraction)), flat[kept.long()]))


def n_kept(n: int, fraction: float) -> int:
    """How many of n elements top-k keeps; 0.1 of 30 is 3, whatever floating point makes of it."""
    return min(n, math.ceil(fraction * n - 1e-9 * n)) if n else 0


def mean_magnitude(flat: Tensor) -> float:
    """Mean of the magnitudes, added up in float64; 0 of nothing."""
    return float(flat.abs().sum(dtype=torch.float64)) / max(flat.numel(), 1)


def largest(flat: Tensor, k: int) -> Tensor:
    """Positions of the k largest magnitudes, ascending, int32; of equal ones those that come first."""
    if not k:
        return torch.empty(0, dtype=torch.int32)
    size = flat.abs()
    least = torch.topk(size, k, sorted=False).values.min()
    beyond, equal = (size > least).nonzero()[:, 0], (size == least).nonzero()[:, 0]
    return torch.cat([beyond, equal[: k - len(beyond)]]).sort().values.to(torch.int32)


def _ternary(flat: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Signs of what is beyond `least`, and the mean magnitude of these."""
    beyond = flat.abs() > least
    return flat.sign() * beyond, torch.tensor(mean_magnitude(flat[beyond]), dtype=torch.float32)


def _flat(x: Tensor, codec: str, what: str) -> tuple[Tensor, float]:
    """The elements in row-major order, and the largest magnitude."""
    if x.dtype != torch.float32:
        raise WireError(f"{what} is {x.dtype}: {codec} carries float32")
    flat = x.detach().contiguous().reshape(-1)
    most = float(flat.abs().max()) if flat.numel() else 0.0
    if not math.isfinite(most):
        raise NotFinite(f"{what} holds NaN or infinity")
    return flat, most


# ---- decode


def _of_fp16(parts: Parts, n: int) -> Tensor:
    return parts[0].float()


def _of_int8(parts: Parts, n: int) -> Tensor:
    return parts[0].float() * parts[1]


def _of_ternary(parts: Parts, n: int) -> Tensor:
    packed, scale = parts
    digits = torch.stack([packed & 3, (packed >> 2) & 3, (packed >> 4) & 3, packed >> 6], dim=1).reshape(-1)[:n]
    return torch.stack([torch.zeros_like(scale), scale, -scale])[digits.int()]


def _of_topk(parts: Parts, n: int) -> Tensor:
    found = torch.zeros(n)
    found[parts[0].long()] = parts[1]
    return found


# ---- what came from elsewhere


def _see(parts: Parts, *wanted: tuple[torch.dtype, int | None]) -> None:
    """Refuse parts of other dtypes and lengths; None: no dimensions.

    Raises:
        WireError: names the part.
    """
    if len(parts) != len(wanted):
        raise WireError(f"{len(parts)} parts, there are {len(wanted)}")
    for number, (part, (dtype, n)) in enumerate(zip(parts, wanted, strict=True)):
        shape = () if n is None else (n,)
        if part.dtype != dtype or tuple(part.shape) != shape:
            raise WireError(f"part {number} is {part.dtype} {tuple(part.shape)}, not {dtype} {shape}")


def _see_scale(scale: Tensor) -> None:
    if not 0 <= scale.item() < math.inf:
        raise WireError(f"the scale is {scale.item()}")


def _see_fp16(parts: Parts, n: int) -> None:
    _see(parts, (torch.float16, n))
    if not torch.isfinite(parts[0]).all():
        raise WireError("it holds NaN or infinity")


def _see_int8(parts: Parts, n: int) -> None:
    _see(parts, (torch.int8, n), (torch.float32, None))
    _see_scale(parts[1])
    if n and parts[0].min() < -LEVELS:
        raise WireError(f"it holds steps beyond {LEVELS}")


def _see_ternary(parts: Parts, n: int) -> None:
    _see(parts, (torch.uint8, _n_packed(n)), (torch.float32, None))
    packed, scale = parts
    _see_scale(scale)
    if (packed & (packed >> 1) & 0b01010101).any():
        raise WireError("it holds a digit that is none of three")
    if n % PER_BYTE and packed[-1] >> 2 * (n % PER_BYTE):
        raise WireError(f"it holds digits beyond its {n} elements")


def _see_topk(parts: Parts, n: int) -> None:
    k = len(parts[0]) if parts and parts[0].dim() == 1 else 0
    _see(parts, (torch.int32, k), (torch.float32, k))
    where, values = parts
    if k and not (where[0] >= 0 and where[-1] < n and (where[1:] > where[:-1]).all()):
        raise WireError(f"its positions do not ascend within {n} elements")
    if not torch.isfinite(values).all():
        raise WireError("it holds NaN or infinity")


def _n_packed(n: int) -> int:
    return -(-n // PER_BYTE)


# ---- sizes


def fp16_bytes(n: int) -> int:
    """Of the parts of n elements."""
    return 2 * n


def int8_bytes(n: int) -> int:
    """Of the parts of n elements."""
    return n + 4


def ternary_bytes(n: int) -> int:
    """Of the parts of n elements."""
    return _n_packed(n) + 4


def topk_bytes(n: int, fraction: float) -> int:
    """Of the parts of n elements."""
    return 8 * n_kept(n, fraction)


FORMS |= {
    "fp16": Form(_see_fp16, _of_fp16),
    "int8": Form(_see_int8, _of_int8),
    "ternary": Form(_see_ternary, _of_ternary),
    "topk": Form(_see_topk, _of_topk),
}
