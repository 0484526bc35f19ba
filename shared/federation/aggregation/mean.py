"""The mean update of a partial sum, and the validation of partial sums that were received."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from pydantic import ValidationError

from shared.core.errors import OutOfBound, WireError
from shared.core.exact_sum import check_bound, check_fixed_point, mean_from_fixed_point
from shared.core.field_errors import told
from shared.core.records import Record
from shared.core.tensor_records import Tensor, TensorMap, holds_model_state
from shared.core.update_annotations import Mean, PerClient, averaged_type, fields_with
from shared.federation.aggregation.partial_sum import FixedPoint, MeanSum, PartialSum

Model = Mapping[str, Tensor]
Restore = Callable[[str, Tensor, MeanSum, torch.dtype], Tensor]


def mean_of(
    partial_sum: PartialSum, kind: type[Record], fixed_point: FixedPoint, *, model: Model | None = None
) -> Record | None:
    """The mean update of a partial sum; None if the sum has neither updates nor values of single clients.

    Raises:
        WireError: the sum does not fit the update's type or the run's model.
    """

    def restore(name: str, steps: Tensor, part: MeanSum, dtype: torch.dtype) -> Tensor:
        weight, exponent = part.positions.get(name, part.weight), fixed_point.exponent(name)
        digits = {
            fixed_point.digit_exponent(name, at): part.digits[at][name] for at in part.digits if name in part.digits[at]
        }
        return mean_from_fixed_point(steps, weight, exponent, dtype, digits)

    return (
        _update(partial_sum, kind, model, restore) if partial_sum.n_updates or any(partial_sum.each.values()) else None
    )


def check_partial_sum(
    partial_sum: PartialSum, kind: type[Record], fixed_point: FixedPoint, *, model: Model | None = None
) -> Record | None:
    """Validates a partial sum against the type of its updates and, if given, the shapes of the run's model.

    Returns:
        A stand-in of the mean update: its tensors have the right names and shapes but no elements, its `PerClient`
        fields have their values. None if the sum is empty.

    Raises:
        NotFinite, OutOfBound, WireError: naming field and tensor.
    """
    means = fields_with(kind, Mean)
    for key, part in partial_sum.means.items():
        name, grouped, _ = key.partition("/")
        if name not in means or bool(grouped) != means[name].by_group:
            raise WireError(f"{kind.__name__} averages no field {key!r}")
        _check_weight(key, part.weight, means[name], partial_sum, fixed_point)
        _check_part(key, part, means[name], fixed_point)
    for name, values in partial_sum.each.items():
        if name not in fields_with(kind, PerClient):
            raise WireError(f"{kind.__name__} collects no field {name!r}")
        check_finite(values, name)
    if partial_sum.means and not partial_sum.n_updates:
        raise WireError("a sum of no updates holds tensors")
    return (
        _update(partial_sum, kind, model, _stand_in)
        if partial_sum.n_updates or any(partial_sum.each.values())
        else None
    )


def _check_weight(key: str, weight: int, how: Mean, partial_sum: PartialSum, fixed_point: FixedPoint) -> None:
    """Checks that a field is not weighted by more than the updates behind it; some of them may lack it."""
    most = fixed_point.weight(how, partial_sum.n_samples, partial_sum.n_updates, partial_sum.n_updates)
    what = "samples" if how.weight == "samples" and fixed_point.by_samples else "updates"
    if weight > most * fixed_point.weight_steps:
        raise WireError(f"{key}: a weight of {weight}, in a sum of {most} {what}")


def _check_part(key: str, part: MeanSum, how: Mean, fixed_point: FixedPoint) -> None:
    if part.positions.keys() != (part.sums.keys() if how.per_position else set()):
        raise WireError(f"{key}: sums and weights by position are of other tensors")
    for name, steps in part.sums.items():
        what = f"{key} {name}".strip()
        weights = part.positions.get(name, steps)
        if steps.dtype != torch.float64 or weights.dtype != torch.float64:
            raise WireError(f"{what}: sums are float64, not {steps.dtype}")
        if weights.shape != steps.shape:
            raise WireError(f"{what}: sums are {tuple(steps.shape)}, weights by position {tuple(weights.shape)}")
        check_fixed_point(steps, fixed_point.largest_sum(name, part.weight), what)
        if how.per_position:
            check_fixed_point(weights, part.weight, f"{what}, by position,")
            if (weights < 0).any():
                raise OutOfBound(f"{what}: weights by position are negative")
    for number, digits in part.digits.items():
        for name, sums in digits.items():
            what = f"digit {number} of {key} {name}".strip()
            if name not in part.sums or not fixed_point.has_digit(name, number):
                raise WireError(f"{what}: there is none")
            if sums.dtype != torch.float64 or sums.shape != part.sums[name].shape:
                raise WireError(f"{what} is {sums.dtype} {tuple(sums.shape)}")
            check_fixed_point(sums, fixed_point.largest_digit_sum(part.weight), what)


def check_finite(value: Any, what: str) -> None:
    """Refuses NaN and infinity in the tensors within a value.

    Raises:
        NotFinite: with `what`, the name of the value.
    """
    for tensor in _tensors_in(value):
        check_bound(tensor, math.inf, what)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Record):
        yield from _tensors_in([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)


def _stand_in(name: str, steps: Tensor, part: MeanSum, dtype: torch.dtype) -> Tensor:
    """A tensor of the mean's shape and dtype that takes no memory."""
    return torch.zeros((), dtype=dtype).expand(steps.shape)


def _update(partial_sum: PartialSum, kind: type[Record], model: Model | None, restore: Restore) -> Record:
    values: dict[str, Any] = {name: partial_sum.each.get(name, {}) for name in fields_with(kind, PerClient)}
    for name, how in fields_with(kind, Mean).items():
        what = averaged_type(kind, name, how)
        parts = _parts_of(partial_sum.means, name, how)
        like = model if holds_model_state(kind, name) else None
        found = {group: _restored(name, part, what, like or {}, restore) for group, part in parts.items()}
        if how.by_group:
            values[name] = found
        elif found:
            values[name] = found[""]
        if how.per_position and parts:
            weights = parts[""].positions
            masks = (holds_model_state(kind, how.per_position) and model) or {}
            values[how.per_position] = {
                key: (weight > 0).to(masks[key].dtype if key in masks else torch.float32)
                for key, weight in weights.items()
            }
    try:
        return kind.model_validate(values, context={"model": model})
    except ValidationError as error:
        raise WireError(f"{kind.__name__}: {told(error)}") from None


def _parts_of(means: Mapping[str, MeanSum], name: str, how: Mean) -> dict[str, MeanSum]:
    if how.by_group:
        return {key.partition("/")[2]: part for key, part in means.items() if key.startswith(f"{name}/")}
    return {"": means[name]} if name in means else {}


def _restored(field: str, part: MeanSum, what: Any, like: Model, restore: Restore) -> TensorMap | Tensor | float:
    """The mean of a field, each tensor in the dtype that it has in the model, of others in float32."""
    usual = torch.float64 if what is float else torch.float32
    dtypes = {name: like[name].dtype if name in like else usual for name in part.sums}
    means = {name: restore(name, steps, part, dtypes[name]) for name, steps in part.sums.items()}
    if what not in (float, Tensor):
        return means
    if means.keys() != {""} or (what is float and means[""].ndim):
        raise WireError(f"{field} is one {what.__name__.lower()}, not {sorted(means)[:5]}")
    return means[""].item() if what is float else means[""]
