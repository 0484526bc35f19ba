"""Bounds of what one process takes from another: the types of numbers, texts and figures in reports.

A number beyond its bound is refused, so that sums over any number of reports stay finite. A text is cut where it is
made and where it is received, so that a report with a long one loses nothing but the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

T = TypeVar("T")
MAX_COUNT = 2**53
"""Largest count: up to it a float64 holds every whole number."""
MAX_AMOUNT = 1e18
"""Largest number of seconds, and of joules: a thousand times the longest delay that a spec may draw."""
MAX_REAL = 1e100
"""Largest absolute value of any other number, such as a loss; its square is finite."""
DETAIL_CHARS = 500
"""Longest cause of a failure, as a sentence for people."""
RUN_REASON_CHARS = 2000
"""Longest cause for which a run waits, pauses or fails: it may quote several failures."""
LABEL_CHARS = 100
"""Longest word by which records are grouped: a reason, a label, the name of a figure."""
LARGEST_DEVICES = 1_000_000
"""Most devices of a run, of a topology, and of one agent."""
LARGEST_EDGES = 1000
"""Most edges of a run."""
LARGEST_SEATS = LARGEST_DEVICES + LARGEST_EDGES
"""Most seats of a run: each of its devices has one, and each edge's own machine."""
PARAMETER_BOUND = 2.0**7
"""Largest absolute value of an element of a parameter tensor in an update, unless the spec says otherwise."""
BUFFER_BOUND = 2.0**12
"""Largest absolute value of an element of a buffer in an update, unless the spec says otherwise."""
FIGURES_CHARS = 2**20
"""Longest text of all figures of one visit, or of one edge in a round, as JSON."""


def cut(text: str, most: int) -> str:
    """Returns a text of at most `most` characters; dots at its end show that it was longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def cut_detail(text: str) -> str:
    """Returns the cause of a failure, cut to `DETAIL_CHARS`."""
    return cut(text, DETAIL_CHARS)


def _cut_to(most: int) -> BeforeValidator:
    return BeforeValidator(lambda raw: cut(raw, most) if isinstance(raw, str) else raw)


def check_figures(figures: T) -> T:
    """Returns an algorithm's figures, if they are within `MAX_REAL` and `FIGURES_CHARS`.

    Raises:
        ValueError: names what is out of bounds.
    """
    n_chars, waiting = 0, [figures]
    while waiting:
        value: Any = waiting.pop()
        if isinstance(value, Mapping):
            long = next((name for name in value if len(str(name)) > LABEL_CHARS), None)
            if long is not None:
                raise ValueError(f"the name {str(long)[:40]!r}... has more than {LABEL_CHARS} characters")
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, int | float) and not -MAX_REAL <= value <= MAX_REAL:
            raise ValueError(f"a figure beyond {MAX_REAL:g}")
        n_chars += len(value) if isinstance(value, str) else 2
        if n_chars > FIGURES_CHARS:
            raise ValueError(f"figures of more than {FIGURES_CHARS} characters")
    return figures


def _truths_as_numbers(raw: Any) -> Any:
    """Algorithms may count with truth values; elsewhere these are no numbers."""
    if not isinstance(raw, Mapping):
        return raw
    return {name: float(value) if isinstance(value, bool) else value for name, value in raw.items()}


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]
Real = Annotated[float, Field(ge=-MAX_REAL, le=MAX_REAL)]
Detail = Annotated[str, _cut_to(DETAIL_CHARS), Field(max_length=DETAIL_CHARS)]
RunReason = Annotated[str, _cut_to(RUN_REASON_CHARS), Field(max_length=RUN_REASON_CHARS)]
Label = Annotated[str, _cut_to(LABEL_CHARS), Field(max_length=LABEL_CHARS)]
VisitFigures = Annotated[dict[str, float], BeforeValidator(_truths_as_numbers), AfterValidator(check_figures)]
Figures = Annotated[dict[str, Any], AfterValidator(check_figures)]
