"""The picture of a comparison as a file."""

from __future__ import annotations

from pathlib import Path

from shared.core.errors import BadInput
from shared.core.files import write_file
from shared.plots.curves import comparison as comparison_picture
from shared.results.comparison import Comparison
from shared.results.matplotlib_figures import Sheet, drawn

FORMATS = ("png", "svg", "pdf")
SHEET = Sheet(width_in=13.5, text_pt=10.0, dpi=300)


def file_format(path: Path, field: str = "out") -> str:
    """The format that the suffix of a file stands for, which `field` names.

    Raises:
        BadInput: the suffix does not name one of `FORMATS`.
    """
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise BadInput(
            f"{field}: {path.name!r} does not end in {', '.join('.' + known for known in FORMATS)}", field=field
        )
    return suffix


def draw_comparison(path: Path, comparison: Comparison) -> bool:
    """Write the picture; False if no run has been evaluated yet.

    Raises:
        BadInput: the suffix stands for no known format.
    """
    content = drawn_comparison(comparison, file_format(path))
    if content is not None:
        write_file(path, content)
    return content is not None


def drawn_comparison(comparison: Comparison, form: str = "png") -> bytes | None:
    """The picture as a file of that format; None if no run has been evaluated yet."""
    picture = comparison_picture(comparison.curves, comparison.target)
    return None if picture is None else drawn(picture, form, SHEET)
