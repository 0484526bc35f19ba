"""Tensor algebra over maps of tensors, and the digest of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from shared.core.tensor_records import Tensor, TensorMap


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> TensorMap:
    """Returns a - b for the names of `a`."""
    return {name: tensor - b[name] for name, tensor in a.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> TensorMap:
    """Returns a + b for the names in `b`, and `a` for its other names."""
    return {name: tensor + b[name] if name in b else tensor for name, tensor in a.items()}


def overlay(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> TensorMap:
    """Returns `a`, with the tensors of `b` in place of those of the same name."""
    return {name: b.get(name, tensor) for name, tensor in a.items()}


def only(a: Mapping[str, Tensor], names: Iterable[str]) -> TensorMap:
    """Returns the tensors of these names, in the order of `a`."""
    wanted = set(names)
    return {name: tensor for name, tensor in a.items() if name in wanted}


def without(a: Mapping[str, Tensor], names: Iterable[str]) -> TensorMap:
    """Returns the tensors of all other names."""
    unwanted = set(names)
    return {name: tensor for name, tensor in a.items() if name not in unwanted}


def private_copies(a: Mapping[str, Tensor]) -> TensorMap:
    """Returns copies in torch's memory: views of a received body must not be trained or evaluated."""
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in a.items()}


def n_bytes(a: Mapping[str, Tensor]) -> int:
    """Returns the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in a.values())


def digest(a: Mapping[str, Tensor]) -> str:
    """Returns the digest of a model: sha256 over names (sorted), dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for name in sorted(a):
        tensor = a[name]
        sha.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\n".encode())
        sha.update(bytes_of(tensor))
    return sha.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns a tensor's bytes in row-major order; a view if it is contiguous."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def memory_of(tensor: Tensor) -> tuple[object, ...]:
    """Returns a key that identifies a tensor among those alive: its memory and layout; for an empty one its shape."""
    if not tensor.numel():  # without memory of its own
        return tensor.dtype, tuple(tensor.shape)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
