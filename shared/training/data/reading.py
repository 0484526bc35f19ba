"""How a data set was read: its columns, the names of classes and groups, and what was left out or converted.

Arrays hold numbers only. A reading keeps what they mean, for the people who look at a run and for the use of its
model: which input is which column, and which class is which name. It is no part of a data set's digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from shared.core.records import LEFT_OUT, Record

ColumnKind = Literal["number", "categories", "date", "indicator"]
SHOWN = 8
"""Most names that a line lists."""


class Column(Record):
    """A column of a table, and the inputs that it became.

    Attributes:
        name: as in the table's header.
        kind: `number`: one input, standardised; `date`: the same of its seconds since 1970; `categories`: an input of 0
            or 1 for each; `indicator`: an input that is 1 where the cell of the column of this name is missing.
        categories: of a column of categories: their names, in the order of the inputs or class numbers.
        mean: of a number, over the training rows; its input is (value - mean) / std. `std` likewise.
        missing: what stands in for a missing cell: a number in the column's unit, or a category; None means that the
            table had none, or that their rows were left out.
        unit: what was taken off each cell of a number, such as `kg` or `%`.
    """

    name: str
    kind: ColumnKind
    categories: tuple[str, ...] = ()
    mean: float | None = None
    std: float | None = None
    missing: float | str | None = None
    unit: str = ""

    @property
    def n_inputs(self) -> int:
        """Number of inputs of the model that are made of this column."""
        return len(self.categories) if self.kind == "categories" else 1

    def __str__(self) -> str:
        if self.kind == "categories":
            return f"{self.name} {len(self.categories)} categories ({listed(self.categories)})"
        if self.kind == "indicator":
            return f"{self.name} missing or not"
        return f"{self.name} {self.kind}{f' in {self.unit}' if self.unit else ''}"


class Scale(Record):
    """Mean and deviation by which numbers were normalised in float64, since float32 does not hold them.

    Attributes:
        mean, std: nested as a sample or so that they broadcast to it.
    """

    mean: Any
    std: Any

    def of(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Returns numbers normalised."""
        found: npt.NDArray[np.float64] = (x - np.array(self.mean)) / np.array(self.std)
        return found


class Reading(Record):
    """How a data set was read.

    Attributes:
        columns: of a table, in the order of the inputs.
        target: the column that models predict.
        classes: names of the classes, in the order of their numbers; empty if they have no names.
        groups: names of the groups, in the order of their numbers; empty if they have no names.
        decimal, thousands: how a table's file writes numbers, where it is not with a point alone.
        scale: by which arrays were normalised before they became float32; None if they were not.
        value_range: the values of images of more than eight bits that are black and white; None if there were none.
        notes: what was left out or converted, and why: a plain sentence each.
    """

    columns: tuple[Column, ...] = ()
    target: Column | None = None
    classes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    decimal: Annotated[str | None, LEFT_OUT] = None
    thousands: Annotated[str | None, LEFT_OUT] = None
    scale: Annotated[Scale | None, LEFT_OUT] = None
    value_range: Annotated[tuple[float, float] | None, LEFT_OUT] = None
    notes: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Returns the reading in words, a few lines."""
        found = []
        if self.columns:
            found.append(f"inputs: {listed([str(column) for column in self.columns], 5 * SHOWN)}")
        if self.target is not None and not self.classes:
            found.append(f"target: {self.target}")
        if self.classes:
            named = "" if self.target is None else f"{self.target.name}, "
            found.append(f"target: {named}{len(self.classes)} classes ({listed(self.classes)})")
        if self.groups:
            found.append(f"groups: {len(self.groups)} ({listed(self.groups)})")
        return (*found, *self.notes)


@dataclass(frozen=True)
class Read:
    """The arrays of a data set, by key, with how they were read. A source may return it in place of arrays."""

    arrays: dict[str, npt.NDArray[Any]]
    reading: Reading = field(default_factory=Reading)

    @classmethod
    def of(cls, found: Read | dict[str, npt.NDArray[Any]]) -> Read:
        """Returns what a source returned, with an empty reading if it gave none."""
        return found if isinstance(found, Read) else cls(found)


def listed(names: Sequence[str], most: int = SHOWN, between: str = ", ") -> str:
    """Returns names as one text; of many, the first and how many more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more
