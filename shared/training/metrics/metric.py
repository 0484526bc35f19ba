"""`Metric`: a measure whose state is whole numbers, so that sums over parts of the data equal that of the whole.

The state of a batch is added to those of other batches, of other clients and of other tiers. Only the sum is turned
into a value, so that a metric is never a mean of clients' values, and no order or grouping changes a bit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from shared.core.errors import BadInput, NotFinite, OutOfBound
from shared.core.formatting import label_of
from shared.core.plugins import Value
from shared.core.scores import MAX_STATE, State
from shared.training.description import Classes, Numbers, Target
from shared.training.specs import TargetKind

FRACTION_BITS = 40
"""Sums of real numbers are exact in steps of 2^-40, some 1e-12."""
UNITS = ("share", "number")
LARGEST = 2.0**40
"""Largest real number that is added up; one that is larger is an error."""


def accepts_all(params: Any, state: State, n: int) -> bool:
    """The default of `Metric.possible`."""
    return True


@dataclass(frozen=True, kw_only=True)
class Metric(Value):
    """A measure of a model's outputs; its functions get None as parameters where it declares none.

    Attributes:
        kinds: of targets for which it is defined.
        state: from its parameters, outputs and targets of a batch, its state: int64, (size,). Both are as `rows_of`
            returns them, a row for each prediction, on the CPU and in float64 where they are no classes.
        value: from its parameters and a sum of states, its value; None where it has none, as without predictions.
        largest: from its parameters and the number of classes, for each number of the state the most that one
            prediction adds to it.
        possible: from its parameters, a sum of states and the number of predictions, whether that sum can occur. Sign
            and bounds have been checked by `largest`. It refuses what another process claims.
        signed: whether a state may have numbers below 0.
        higher_is_better: the direction of the metric.
        unit: `share` for values that are shown in percent, otherwise `number`.
    """

    kinds: frozenset[TargetKind]
    state: Callable[[Any, Tensor, Tensor], Tensor]
    value: Callable[[Any, State], float | None]
    largest: Callable[[Any, int], Sequence[int]]
    possible: Callable[[Any, State, int], bool] = accepts_all
    signed: bool = False
    higher_is_better: bool = True
    unit: Literal["share", "number"] = "number"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in UNITS:
            raise ValueError(f"metric {self.name}: the unit {self.unit!r:.80} is none of {', '.join(UNITS)}")


@dataclass(frozen=True)
class MetricOfRun:
    """A metric with the parameters that a run's spec gives it.

    Attributes:
        metric: the metric.
        params: its parameters.
        n_classes: number of classes of the run's data, 0 where targets are numbers.
    """

    metric: Metric
    params: BaseModel | None = None
    n_classes: int = 0

    @cached_property
    def label(self) -> str:
        """Its key in scores and records: its name, with the parameters that differ from their defaults."""
        return label_of(self.metric.name, changed(self.params))

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """For each number of a state, the most that one prediction adds to it."""
        return tuple(self.metric.largest(self.params, self.n_classes))

    def state(self, outputs: Tensor, targets: Tensor) -> State:
        """Returns the state of a batch; arguments as for `Metric.state`.

        Raises:
            BadInput: the metric's own function returned another type or shape.
        """
        found: Any = self.metric.state(self.params, outputs, targets)
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        if what != (wanted := f"torch.int64 ({len(self.largest)},)"):
            raise BadInput(f"the state of {self.label} is {what}, not a tensor {wanted}", field="metrics")
        return tuple(found.tolist())

    def value(self, state: State) -> float | None:
        """Returns the value of a sum of states."""
        return self.metric.value(self.params, state)

    def fault(self, state: State, n: int) -> str | None:
        """Returns why a state that another process sent cannot be that of n predictions, None if it can.

        Checked are its size, the signs and bounds of its numbers, and how they agree.
        """
        if len(state) != len(self.largest):
            return f"a state of {self.label} of {len(state)} numbers, not {len(self.largest)}"
        for place, (number, most) in enumerate(zip(state, self.largest, strict=True)):
            least = -most * n if self.metric.signed else 0
            if not least <= number <= most * n:
                return f"a state of {self.label} whose number {place} is {number}, not {least} to {most * n}"
        if not self.metric.possible(self.params, state, n):
            return f"a state of {self.label} that cannot be that of {n} predictions"
        return None


def metric_of_run(metric: Metric, raw: Mapping[str, Any], target: Target, where: str) -> MetricOfRun:
    """Returns a metric with the parameters of a spec.

    Args:
        metric: the metric.
        raw: its parameters as the spec has them.
        target: of the run's data.
        where: path of the metric in the spec.

    Raises:
        BadInput: a parameter is wrong, the metric is not defined for such targets, or its state would be too large.
    """
    n_classes = 0 if isinstance(target, Numbers) else target.n
    made = MetricOfRun(metric, metric.parse(raw, f"{where}.params"), n_classes)
    if target.kind not in metric.kinds:
        needed = " or ".join(sorted(metric.kinds))
        raise BadInput(f"{where}: {metric.name} needs targets that are {needed}, not {target.kind}", field=where)
    if len(made.largest) > MAX_STATE:
        many = f"a state of {len(made.largest)} numbers for {n_classes} classes, the limit is {MAX_STATE}"
        raise BadInput(f"{where}: {made.label} has {many}", field=where)
    return made


def changed(params: BaseModel | None) -> dict[str, Any]:
    """Returns the parameters that differ from their defaults."""
    return params.model_dump(exclude_defaults=True) if params is not None else {}


def rows_of(target: Target, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a model's outputs and the targets with a row for each prediction, without padding.

    Returns:
        For classes and tokens (n, classes) and (n,), for numbers (n, values) twice.
    """
    if isinstance(target, Classes):
        return outputs, y
    if isinstance(target, Numbers):
        return outputs.reshape(len(y), -1), y.reshape(len(y), -1)
    real = target.real(y)
    return outputs[real], y[real]


# ---- exact sums of real numbers


def fixed_sum(values: Tensor, what: str) -> list[int]:
    """Returns the exact sum of real numbers as [whole parts, fractions in steps of 2^-40], each rounded to such a step.

    Args:
        values: float64, (n,), from 0 to `LARGEST`.
        what: the name of the values in errors.

    Raises:
        NotFinite, OutOfBound: a value is NaN, infinite or beyond `LARGEST`.
    """
    if not values.isfinite().all():
        raise NotFinite(f"{what} is NaN or infinite")
    if len(values) and values.max() > LARGEST:
        raise OutOfBound(f"{what} of {values.max().item():g}, sums are exact up to {LARGEST:g}")
    whole = values.floor()
    steps = ((values - whole) * 2.0**FRACTION_BITS).round()
    return [int(whole.to(torch.int64).sum()), int(steps.to(torch.int64).sum())]


def fixed_mean(whole: int, steps: int, n: int) -> float | None:
    """Returns the mean over n predictions of a sum that `fixed_sum` returned; None without predictions."""
    return ((whole << FRACTION_BITS) + steps) / (n << FRACTION_BITS) if n else None


FIXED_SUM = (2**FRACTION_BITS, 2**FRACTION_BITS)
"""The most that one prediction adds to the two numbers of `fixed_sum`."""
