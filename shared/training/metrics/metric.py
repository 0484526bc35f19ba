"""`Metric`: a measure whose state is whole numbers, so that sums over parts of the data equal that of the whole.

The state of a batch is added to those of other batches, of other clients and of other tiers. Only the sum is turned
into a value, so that a metric is never a mean of clients' values, and no order or grouping changes a bit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel
from torch import Tensor

from shared.core.bounds import LABEL_CHARS
from shared.core.errors import BadInput, NotFinite
from shared.core.formatting import label_of
from shared.core.plugins import Value
from shared.core.scores import MAX_STATE, AnyState, ClassCounts, State
from shared.core.tallies import MAX_KEYS, Tally
from shared.core.user_code import user_code
from shared.training.description import Labels, Numbers, Target, Tokens
from shared.training.specs import TargetKind

FRACTION_BITS = 1074
"""Sums of doubles are exact in steps of 2^-1074, of which each double is a multiple."""
EXACT_SUM = 2 ** (1024 + FRACTION_BITS)
"""The most that one prediction adds to a sum of `exact_sum`."""
UNITS = ("share", "number")


def accepts_all(params: Any, state: Any, n: int) -> bool:
    """The default of `Metric.possible`."""
    return True


def counts_nothing(params: Any, state: State) -> ClassCounts | None:
    """The default of `Metric.counts`."""
    return None


@dataclass(frozen=True, kw_only=True)
class Metric(Value):
    """A measure of a model's outputs; its functions get None as parameters where it declares none.

    Attributes:
        kinds: of targets for which it is defined.
        state: from its parameters, outputs and targets of a batch, its state: int64, (size,), or a tuple of so many
            whole numbers of any size, as those of `exact_sum`; or a tally like `tally`. Outputs and targets are as
            `rows_of` returns them, a row for each prediction, on the CPU and in float64 where they are no classes.
        value: from its parameters and a sum of states, its value; None where it has none, as without predictions.
        largest: from its parameters and the number of classes, for each number of the state the most that one
            prediction adds to it.
        possible: from its parameters, a sum of states and the number of predictions, whether that sum can occur. Sign
            and bounds have been checked by `largest`. It refuses what another process claims.
        counts: from its parameters and a sum of states, what the state counts by class; None if it counts none.
        has_value: whether it has values; one without is a table alone, by which no run is judged or ended.
        signed: whether a state may have numbers below 0.
        higher_is_better: the direction of the metric.
        unit: `share` for values that are shown in percent, otherwise `number`.
        tally: where the state is a tally, from its parameters and the number of classes, the empty one.
        error: where the value is not exact, from its parameters and a sum of states, a bound on the value's error.
        numbered: from its parameters and the names of the data's classes, parameters without such names.
        of_labels: the same measure of targets that are several labels, where it is computed otherwise.
    """

    kinds: frozenset[TargetKind]
    state: Callable[[Any, Tensor, Tensor], Tensor | tuple[int, ...] | Tally]
    value: Callable[[Any, Any], float | None]
    largest: Callable[[Any, int], Sequence[int]] = lambda params, n_classes: ()
    possible: Callable[[Any, Any, int], bool] = accepts_all
    counts: Callable[[Any, Any], ClassCounts | None] = counts_nothing
    has_value: bool = True
    signed: bool = False
    higher_is_better: bool = True
    unit: Literal["share", "number"] = "number"
    tally: Callable[[Any, int], Tally] | None = None
    error: Callable[[Any, Any], float] | None = None
    numbered: Callable[[Any, Sequence[str]], Any] = lambda params, classes: params
    of_labels: Metric | None = None

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
        said: the parameters as the spec has them, if they name a class.
    """

    metric: Metric
    params: BaseModel | None = None
    n_classes: int = 0
    said: BaseModel | None = None

    @cached_property
    def label(self) -> str:
        """Its key in scores and records: its name, with the parameters that differ from their defaults."""
        said = label_of(self.metric.name, changed(self.said))
        if self.said is not None and said.isprintable() and len(said) <= LABEL_CHARS:
            return said
        return label_of(self.metric.name, changed(self.params))

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """For each number of a state, the most that one prediction adds to it."""
        with user_code(f"the metric {self.label}"):
            return tuple(self.metric.largest(self.params, self.n_classes))

    @cached_property
    def tally(self) -> Tally | None:
        """The empty tally that its states are like; None where they are numbers."""
        return self.metric.tally(self.params, self.n_classes) if self.metric.tally else None

    def state(self, outputs: Tensor, targets: Tensor) -> AnyState:
        """Returns the state of a batch; arguments as for `Metric.state`.

        Raises:
            BadInput: the metric's own function returned another type or shape.
        """
        with user_code(f"the metric {self.label}", "metrics", outputs=outputs, targets=targets):
            found: Any = self.metric.state(self.params, outputs, targets)
        if self.tally is not None and isinstance(found, Tally):
            return found
        if isinstance(found, tuple) and len(found) == len(self.largest) and all(type(each) is int for each in found):
            return found
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        if what != (wanted := f"torch.int64 ({len(self.largest)},)"):
            raise BadInput(f"the state of {self.label} is {what}, not a tensor {wanted}", field="metrics")
        return tuple(found.tolist())

    def value(self, state: AnyState) -> float | None:
        """Returns the value of a sum of states.

        Raises:
            BadInput: the metric's own function returned no number.
        """
        with user_code(f"the metric {self.label}", "metrics"):
            found: Any = self.metric.value(self.params, state)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, Real):
            why = f"the value of {self.label} is a {type(found).__name__}, not a number or None"
            raise BadInput(why, field="metrics")
        return float(found)

    def error(self, state: AnyState) -> float:
        """Returns a bound on the error of the value of a sum of states, 0 where the value is exact."""
        return self.metric.error(self.params, state) if self.metric.error else 0.0

    def counts(self, state: AnyState) -> ClassCounts | None:
        """Returns what a sum of states counts by class, if it does."""
        return self.metric.counts(self.params, state)

    def fault(self, state: AnyState, n: int) -> str | None:
        """Returns why a state that another process sent cannot be that of n predictions, None if it can.

        Checked are its size, the signs and bounds of its numbers, and how they agree.
        """
        if isinstance(state, Tally) or self.tally is not None:
            found = (
                state.fault(self.tally) if isinstance(state, Tally) and self.tally else "numbers, or a tally of none"
            )
        else:
            found = self._fault_of_numbers(state, n)
        if found:
            return f"a state of {self.label} {found}"
        if not self.metric.possible(self.params, state, n):
            return f"a state of {self.label} that cannot be that of {n} predictions"
        return None

    def _fault_of_numbers(self, state: State, n: int) -> str | None:
        if len(state) != len(self.largest):
            return f"of {len(state)} numbers, not {len(self.largest)}"
        for place, (number, most) in enumerate(zip(state, self.largest, strict=True)):
            least = -most * n if self.metric.signed else 0
            if not least <= number <= most * n:
                return f"whose number {place} is {number}, not {least} to {most * n}"
        return None


def metric_of_run(
    metric: Metric, raw: Mapping[str, Any], target: Target, where: str, classes: Sequence[str] = ()
) -> MetricOfRun:
    """Returns a metric with the parameters of a spec.

    Args:
        metric: the metric.
        raw: its parameters as the spec has them.
        target: of the run's data.
        where: path of the metric in the spec.
        classes: names of the classes; empty if they have none.

    Raises:
        BadInput: a parameter is wrong, the metric is not defined for such targets, or its state would be too large.
    """
    check_kind(where, metric.name, metric.kinds, target)
    if isinstance(target, Labels) and metric.of_labels is not None:
        metric = metric.of_labels
    n_classes = 0 if isinstance(target, Numbers) else target.n
    said = metric.parse(raw, f"{where}.params")
    with _fields_below(where):
        made = MetricOfRun(metric, metric.numbered(said, classes), n_classes, said)
        size, limit = len(made.largest), MAX_STATE
    if made.tally is not None:
        size, limit = made.tally.most * len(made.tally.rows), MAX_KEYS
    if size > limit:
        many = f"a state of {size} numbers for {n_classes} classes, the limit is {limit}"
        raise BadInput(f"{where}: {made.label} has {many}", field=where)
    return made


@contextmanager
def _fields_below(where: str) -> Iterator[None]:
    """Puts the metric's path before the field of an error that a metric raises, which is one of its own."""
    try:
        yield
    except BadInput as error:
        field = ".".join(filter(None, (where, error.field)))
        raise BadInput(f"{field}: {error.detail}", field=field) from None


def check_kind(where: str, name: str, kinds: frozenset[TargetKind], target: Target) -> None:
    """Checks that a loss or a metric is defined for targets of the data's kind.

    Raises:
        BadInput: it is not; names the field, and the kinds for which it is.
    """
    if target.kind in kinds:
        return
    needed = " or ".join(sorted(kinds))
    why = f"{name} needs targets that are {needed}, not {target.kind}"
    if "labels" in kinds and target.kind != "classes":
        why = f"{why}; targets of 0 and 1 are labels with `data.kind: labels`"
    raise BadInput(f"{where}: {why}", field=where)


def changed(params: BaseModel | None) -> dict[str, Any]:
    """Returns the parameters that differ from their defaults."""
    return params.model_dump(exclude_defaults=True) if params is not None else {}


def rows_of(target: Target, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a model's outputs and the targets with a row for each prediction, without padding.

    Returns:
        For classes and tokens (n, classes) and (n,), for labels (n, labels) twice, for numbers (n, values) twice.
    """
    if isinstance(target, Tokens):
        return outputs[target.real(y)], targets_of(target, y)
    rows = outputs.reshape(len(y), -1) if isinstance(target, Numbers) else outputs
    return rows, targets_of(target, y)


def targets_of(target: Target, y: Tensor) -> Tensor:
    """Returns the targets as `rows_of` does."""
    if isinstance(target, Tokens):
        return y[target.real(y)]
    return y.reshape(len(y), -1) if isinstance(target, Numbers) else y


# ---- exact sums of real numbers


def exact_sum(values: Tensor, what: str) -> int:
    """Returns the sum of real numbers without any rounding, in steps of 2^-1074.

    Args:
        values: float64, (n,), any finite numbers.
        what: the name of the values in errors.

    Raises:
        NotFinite: a value is NaN or infinite.
    """
    if not values.isfinite().all():
        raise NotFinite(f"{what} is NaN or infinite")
    mantissas, exponents = np.frexp(values.numpy().astype(np.float64))
    whole = np.ldexp(mantissas, 53).astype(np.int64)  # value = whole 2^(exponent - 53)
    total = 0
    for exponent in np.unique(exponents).tolist():
        those = whole[exponents == exponent]
        high, low = int((those >> 26).sum()), int((those & (2**26 - 1)).sum())  # sums of up to 2^26 numbers fit
        shift = exponent - 53 + FRACTION_BITS  # below 0 for the smallest numbers, whose last bits are 0
        part = (high << 26) + low
        total += part << shift if shift >= 0 else part >> -shift
    return total


def exact_mean(total: int, n: int) -> float | None:
    """Returns the mean over n predictions of a sum that `exact_sum` returned; None without any, or beyond a double."""
    try:
        return total / (n << FRACTION_BITS) if n else None
    except OverflowError:
        return None
