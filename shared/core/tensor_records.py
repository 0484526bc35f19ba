"""Tensors as fields of records: the types of such fields, and what is done to all tensors of a record.

Records of runs, rounds and nodes have no tensors; whoever reads only those does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

import torch
from pydantic import AfterValidator, BaseModel, ValidationInfo

from shared.core.records import Record

Tensor = torch.Tensor
TensorMap = dict[str, Tensor]
_LEAVES = frozenset({int, float, bool, str, type(None)})


def _like_model(value: TensorMap, info: ValidationInfo) -> TensorMap:
    """Compares names, shapes and dtypes with the run's model, if the validation's context has one."""
    template: Mapping[str, Tensor] | None = (info.context or {}).get("model")
    if template is None:
        return value
    for name, tensor in value.items():
        own = template.get(name)
        if own is None:
            raise ValueError(f"the run's model has no tensor {name!r}")
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            raise ValueError(
                f"{name!r} is {tensor.dtype} {tuple(tensor.shape)}, the model's is {own.dtype} {tuple(own.shape)}"
            )
    return value


_IS_MODEL_STATE = AfterValidator(_like_model)
ModelState = Annotated[TensorMap, _IS_MODEL_STATE]
"""Tensors of the run's model by name (parameters, buffers, or some of them), checked when a body is decoded."""


def holds_model_state(kind: type[BaseModel], name: str) -> bool:
    """Whether a field is a `ModelState`, an optional one, or a map of them."""
    field = kind.model_fields[name]
    return _IS_MODEL_STATE in field.metadata or _mentions_model_state(field.annotation)


def _mentions_model_state(annotation: Any) -> bool:
    parts = get_args(annotation)
    return any(part == _IS_MODEL_STATE or _mentions_model_state(part) for part in parts)


def copy_tensors(value: Any) -> Any:
    """Returns a record, or nested lists and maps, with all tensors copied into torch's own memory.

    Training on views of a body would give other bits (torch's kernels depend on alignment) and keep the whole body in
    memory. A tensor that occurs several times is copied once.
    """
    made: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return made[id(tensor)]

    return with_tensors(value, copied)


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a record, or nested lists and maps, with `change` applied to each tensor."""
    if type(value) in _LEAVES:  # most values
        return value
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Record):
        kind = type(value)
        fields = {name: getattr(value, name) for name in kind.model_fields} | (value.model_extra or {})
        return kind.model_construct(**{name: with_tensors(item, change) for name, item in fields.items()})
    if isinstance(value, dict):
        return {key: with_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [with_tensors(item, change) for item in value]
    if type(value) is tuple:
        return tuple(with_tensors(item, change) for item in value)
    return value


def same_leaves(a: object, b: object) -> bool:
    """Whether two values have the same structure, identical tensors (not copies) and equal JSON values."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, Tensor):
        return False
    if isinstance(a, Record) and isinstance(b, Record):
        fields = all(same_leaves(getattr(a, name), getattr(b, name)) for name in type(a).model_fields)
        return fields and same_leaves(a.model_extra, b.model_extra)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same_leaves(item, b[key]) for key, item in a.items())
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same_leaves, a, b))
    return a == b
