"""Tensor algebra, and the digest of a model."""

from __future__ import annotations

import torch

from shared.core import tensors
from shared.core.tensor_records import TensorMap

A: TensorMap = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
B: TensorMap = {"w": torch.tensor([10.0, 20.0])}


def lists(found: TensorMap) -> dict[str, object]:
    return {name: tensor.tolist() for name, tensor in found.items()}


def test_the_algebra_works_name_by_name() -> None:
    assert lists(tensors.subtract(B, A)) == {"w": [9, 18]}
    assert lists(tensors.add(A, B)) == {"w": [11, 22], "b": [3]}
    assert lists(tensors.overlay(A, B)) == {"w": [10, 20], "b": [3]}
    assert lists(tensors.only(A, ["b"])) == {"b": [3]}
    assert lists(tensors.without(A, ["b"])) == {"w": [1, 2]}
    assert tensors.n_bytes(A) == 12
    matrix = torch.arange(4.0).reshape(2, 2)
    mine = tensors.private_copies({"t": matrix.T})["t"]
    matrix[0, 1] = 9
    assert mine.tolist() == [[0, 2], [1, 3]], "private copies share no memory"
    assert mine.is_contiguous()


# ---- the digest of a model


def test_the_digest_is_golden_and_does_not_depend_on_order_or_memory_layout() -> None:
    # sha256 of b"w float32 (2,)\n" and the eight bytes of 1.0 and 2.0: by `printf ... | sha256sum`.
    golden = "595e0ae447b69ef4c048935588c27a3769fb62126dd4fdf3f748a98490049c09"
    assert tensors.digest({"w": torch.tensor([1.0, 2.0])}) == golden
    assert tensors.digest(A) == tensors.digest(dict(reversed(A.items())))
    matrix = torch.arange(6.0).reshape(2, 3)
    assert tensors.digest({"t": matrix.T}) == tensors.digest({"t": matrix.T.contiguous()})


def test_the_digest_depends_on_names_bytes_shapes_dtypes_and_on_what_belongs_together() -> None:
    w = torch.tensor([1.0, 2.0])
    others: list[TensorMap] = [{"v": w}, {"w": w + 0.5}, {"w": w[None]}, {"w": w.view(torch.int32)}]
    others.append({"w": w[:1], "x": w[1:]})
    assert len({tensors.digest(each) for each in ({"w": w}, *others)}) == 6
