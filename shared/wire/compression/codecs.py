"""The codecs: a float32 tensor to its compressed form, and back.

    fp16      half precision                                 2 bytes an element
    int8      q = round(x / s), s = max |x| / 127            1 byte, and 4
    ternary   w * t, t in {-1, 0, 1}                         2 bits, and 4 bytes
    topk      the elements that are largest in magnitude     8 bytes for each of these

With x' the decoded tensor, for each element

    fp16      |x - x'| <= max(2^-11 |x|, 2^-25)
    int8      |x - x'| <= s / 2 (plus float32 rounding)
    ternary   x' is 0 or w with the sign of x; w, the mean of the |x| beyond the threshold, minimises |x - x'|
    topk      x' is x or 0; |x - x'|^2 <= (1 - k / n) |x|^2 over the whole tensor (Stich et al. 2018, definition 2.1)

Coding a decoded tensor again changes nothing with fp16 and ternary, and with int8 no more than float32 rounding.

Sources: F. Li, B. Zhang, B. Liu: Ternary Weight Networks, arXiv 1605.04711 (0.7 times the mean of |x|, and w).
S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with Memory, NeurIPS 2018 (top-k). int8 is the usual symmetric
quantisation of a whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.core.errors import NotFinite, OutOfBound, WireError
from shared.wire.codec_settings import CodecSpec, Fp16Settings, Int8Settings, TernarySettings, TopKSettings
from shared.wire.compression.coded_tensor import Codec, Coded, Parts

MAX_FP16 = 65_504.0
"""Largest finite half-precision number."""
LEVELS = 127
"""Steps of int8 from 0 to the largest magnitude."""
PER_BYTE = 4
"""Ternary digits in a byte: two bits each, the first digit lowest. 0, 1 and 2 stand for 0, 1 and -1; 3 is invalid."""


class Fp16(Fp16Settings, Codec):
    """Half precision."""

    def encode(self, x: Tensor, what: str = "tensor") -> Coded:
        """Rounds each element."""
        flat, most = _flat(x, self.name, what)
        if most > MAX_FP16:
            raise OutOfBound(f"{what} holds {most:g}, fp16 carries up to {MAX_FP16:g}")
        return Coded(Fp16, x.shape, (flat.half(),))

    def n_bytes(self, n: int) -> int:
        """Returns two bytes for each element."""
        return 2 * n

    @staticmethod
    def check(parts: Parts, n: int) -> None:
        """Refuses other parts than finite elements."""
        _check_parts(parts, (torch.float16, n))
        _check_values(parts[0])

    @staticmethod
    def decode(parts: Parts, n: int) -> Tensor:
        """Returns the elements."""
        return parts[0].float()


class Int8(Int8Settings, Codec):
    """Whole numbers of steps; a step is a 127th of a tensor's largest magnitude."""

    def encode(self, x: Tensor, what: str = "tensor") -> Coded:
        """Returns the numbers of steps, and the step."""
        flat, most = _flat(x, self.name, what)
        scale = torch.tensor(most / LEVELS, dtype=torch.float32)
        if not torch.isfinite(scale * LEVELS):
            raise OutOfBound(f"{what} holds {most:g}, which is not a finite number of int8's steps")
        steps = (flat / scale).round_().clamp_(-LEVELS, LEVELS) if scale > 0 else torch.zeros_like(flat)
        return Coded(Int8, x.shape, (steps.to(torch.int8), scale))

    def n_bytes(self, n: int) -> int:
        """Returns one byte for each element, and four for the step."""
        return n + 4

    @staticmethod
    def check(parts: Parts, n: int) -> None:
        """Refuses other parts than numbers within +-127 and a step of which 127 are finite."""
        _check_parts(parts, (torch.int8, n), (torch.float32, None))
        _check_scale(parts[1], LEVELS)
        if n and parts[0].min() < -LEVELS:
            raise WireError(f"it holds steps beyond {LEVELS}")

    @staticmethod
    def decode(parts: Parts, n: int) -> Tensor:
        """Returns the numbers times the step."""
        return parts[0].float() * parts[1]


class Ternary(TernarySettings, Codec):
    """One magnitude a tensor and two bits an element."""

    def encode(self, x: Tensor, what: str = "tensor") -> Coded:
        """Returns the signs of the elements beyond the threshold, and their mean magnitude."""
        flat, _ = _flat(x, self.name, what)
        beyond = flat.abs() > self.threshold * mean_magnitude(flat)
        scale = torch.tensor(mean_magnitude(flat[beyond]), dtype=torch.float32)
        return ternary_of(flat.sign() * beyond, scale, x.shape, what)

    def n_bytes(self, n: int) -> int:
        """Returns two bits for each element, and four bytes for the magnitude."""
        return _n_packed(n) + 4

    @staticmethod
    def check(parts: Parts, n: int) -> None:
        """Refuses other parts than valid digits, 0 beyond the last element, and a magnitude."""
        _check_parts(parts, (torch.uint8, _n_packed(n)), (torch.float32, None))
        packed, scale = parts
        _check_scale(scale)
        if (packed & (packed >> 1) & 0b01010101).any():
            raise WireError("it holds an invalid ternary digit")
        if n % PER_BYTE and packed[-1] >> 2 * (n % PER_BYTE):
            raise WireError(f"it holds digits beyond its {n} elements")

    @staticmethod
    def decode(parts: Parts, n: int) -> Tensor:
        """Returns the magnitude times each digit."""
        packed, scale = parts
        digits = torch.stack([packed & 3, (packed >> 2) & 3, (packed >> 4) & 3, packed >> 6], dim=1).reshape(-1)[:n]
        return torch.stack([torch.zeros_like(scale), scale, -scale])[digits.int()]


class TopK(TopKSettings, Codec):
    """The largest elements of each tensor."""

    @property
    def feeds_back(self) -> bool:
        """Whether it has a memory."""
        return self.memory

    def encode(self, x: Tensor, what: str = "tensor") -> Coded:
        """Returns positions and values of the largest magnitudes, at least one; of equal ones the first."""
        flat, _ = _flat(x, self.name, what)
        kept = largest(flat, n_kept(len(flat), self.fraction))
        return Coded(TopK, x.shape, (kept, flat[kept.long()]))

    def n_bytes(self, n: int) -> int:
        """Returns four bytes for each position, and four for its value."""
        return 8 * n_kept(n, self.fraction)

    @staticmethod
    def check(parts: Parts, n: int) -> None:
        """Refuses other parts than ascending positions within the tensor, and as many finite values."""
        k = len(parts[0]) if parts and parts[0].dim() == 1 else 0
        _check_parts(parts, (torch.int32, k), (torch.float32, k))
        where, values = parts
        if k and not (where[0] >= 0 and where[-1] < n and (where[1:] > where[:-1]).all()):
            raise WireError(f"its positions do not ascend within {n} elements")
        _check_values(values)

    @staticmethod
    def decode(parts: Parts, n: int) -> Tensor:
        """Returns the values at their positions, 0 elsewhere."""
        found = torch.zeros(n)
        found[parts[0].long()] = parts[1]
        return found


CODECS: dict[str, type[Codec]] = {codec.called(): codec for codec in (Fp16, Int8, Ternary, TopK)}


def codec_of(settings: CodecSpec | None) -> Codec | None:
    """Returns the codec that a spec names."""
    return None if settings is None else CODECS[settings.name].model_validate(settings.model_dump())


def from_parts(codec: str, shape: Sequence[int], parts: Parts, field_path: str) -> Coded:
    """Returns a compressed tensor of a body; its parts are checked when it is decoded.

    Args:
        codec: the name of its codec.
        shape: of the decoded tensor.
        parts: of the codec.
        field_path: path of its field in the body.

    Raises:
        WireError: there is no such codec.
    """
    if codec not in CODECS:
        raise WireError(f"there is no codec {codec[:40]!r}")
    return Coded(CODECS[codec], shape, parts, field_path)


# ---- coding


def ternary_of(signs: Tensor, scale: Tensor, shape: Sequence[int], what: str = "tensor") -> Coded:
    """Returns `scale * signs` in ternary form.

    Args:
        signs: -1, 0 or 1, any dtype, as many elements as the shape has.
        scale: float32, no dimensions, not negative.
        shape: of the decoded tensor.
        what: its name, for errors.

    Raises:
        NotFinite: the scale is not finite.
    """
    if not torch.isfinite(scale):
        raise NotFinite(f"{what} has the magnitude {scale.item()}")
    digits = torch.where(signs < 0, 2, signs).reshape(-1).to(torch.uint8)
    padded = torch.nn.functional.pad(digits, (0, -len(digits) % PER_BYTE)).view(-1, PER_BYTE)
    packed = padded[:, 0] | (padded[:, 1] << 2) | (padded[:, 2] << 4) | (padded[:, 3] << 6)
    return Coded(Ternary, shape, (packed, scale))


def n_kept(n: int, fraction: float) -> int:
    """Returns how many of n elements top-k keeps, rounded up; 0.28 of 25 is 7 despite floating point."""
    return min(n, math.ceil(fraction * n - 1e-9 * n)) if n else 0


def mean_magnitude(flat: Tensor) -> float:
    """Returns the mean magnitude, summed in float64; 0 for an empty tensor."""
    return float(flat.abs().sum(dtype=torch.float64)) / max(flat.numel(), 1)


def largest(flat: Tensor, k: int) -> Tensor:
    """Returns the positions of the k largest magnitudes, ascending, int32; of equal ones the first."""
    if not k:
        return torch.empty(0, dtype=torch.int32)
    size = flat.abs()
    least = torch.topk(size, k, sorted=False).values.min()
    beyond, equal = (size > least).nonzero()[:, 0], (size == least).nonzero()[:, 0]
    return torch.cat([beyond, equal[: k - len(beyond)]]).sort().values.to(torch.int32)


def _flat(x: Tensor, codec: str, what: str) -> tuple[Tensor, float]:
    """Returns the elements in row-major order, and the largest magnitude."""
    if x.dtype != torch.float32:
        raise WireError(f"{what} is {x.dtype}: {codec} carries float32")
    flat = x.detach().contiguous().reshape(-1)
    most = float(flat.abs().max()) if flat.numel() else 0.0
    if not math.isfinite(most):
        raise NotFinite(f"{what} holds NaN or infinity")
    return flat, most


def _n_packed(n: int) -> int:
    return -(-n // PER_BYTE)


# ---- checks of parts from other processes


def _check_parts(parts: Parts, *wanted: tuple[torch.dtype, int | None]) -> None:
    """Refuses parts of other dtypes and lengths than (dtype, length); length None means a scalar.

    Raises:
        WireError: names the part.
    """
    if len(parts) != len(wanted):
        raise WireError(f"{len(parts)} parts, it needs {len(wanted)}")
    for number, (part, (dtype, n)) in enumerate(zip(parts, wanted, strict=True)):
        shape = () if n is None else (n,)
        if part.dtype != dtype or tuple(part.shape) != shape:
            raise WireError(f"part {number} is {part.dtype} {tuple(part.shape)}, not {dtype} {shape}")


def _check_scale(scale: Tensor, most: int = 1) -> None:
    """Refuses a scale that is negative or not finite, also if multiplied by `most`."""
    if not 0 <= scale.item() < math.inf or not torch.isfinite(scale * most):
        raise WireError(f"the scale is {scale.item()}")


def _check_values(values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise WireError("it holds NaN or infinity")
