"""The parts that all charts share: colours of light and dark pages, axes with units, legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.core.formatting import scale
from shared.plots.picture import Axis, Value

Options = dict[str, Any]
_FULL_AXIS_ABOVE = 0.8
"""If the largest share exceeds this, the axis ends at 100 %."""


@dataclass(frozen=True)
class Theme:
    """The colours of a chart beside those of its data: of text, of axes and grid lines, and of the background."""

    text: str
    lines: str
    background: str
    is_dark: bool = False


LIGHT = Theme(text="#333333", lines="#dddddd", background="#ffffff")
DARK = Theme(text="#dddddd", lines="#444444", background="#1d1d1d", is_dark=True)


def unit_of(axis: Axis, values: Iterable[Value]) -> tuple[float, str]:
    """The factor by which values are multiplied, and the unit of the products."""
    if axis.unit == "share":
        return 100.0, "%"
    if axis.unit in ("bytes", "seconds"):
        divisor, unit = scale(axis.unit, max((value for value in values if value is not None), default=0.0))
        return 1 / divisor, unit
    return 1.0, ""


def value_axis(axis: Axis, unit: str, theme: Theme, *, vertical: bool, largest: Value = None) -> Options:
    """A numeric axis. If the largest value of shares is close to 1, it ends at 100 %."""
    name = f"{axis.label} ({unit})" if unit else axis.label
    ends_at_100 = axis.unit == "share" and largest is not None and _FULL_AXIS_ABOVE < largest <= 1
    return {
        **({"max": 100} if ends_at_100 else {}),
        "type": "log" if axis.log else "value",
        "name": name,
        "nameLocation": "end" if vertical else "middle",
        "nameGap": 14 if vertical else 28,
        "nameTextStyle": {"color": theme.text, "align": "left" if vertical else "center"},
        "scale": not axis.from_zero,
        "minInterval": 1 if axis.whole else 0,
        "axisLabel": {"color": theme.text},
        "axisLine": {"lineStyle": {"color": theme.lines}},
        "splitLine": {"lineStyle": {"color": theme.lines}},
    }


def category_axis(axis: Axis, names: Sequence[str], theme: Theme, *, vertical: bool = False) -> Options:
    """A category axis."""
    return {
        "type": "category",
        "data": list(names),
        "name": axis.label,
        "nameLocation": "end" if vertical else "middle",
        "nameGap": 14 if vertical else 28,
        "nameTextStyle": {"color": theme.text, "align": "left" if vertical else "center"},
        "axisLabel": {"color": theme.text, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": theme.lines}},
    }


def grid(*, left: int = 12, right: int = 24, top: int = 56, bottom: int = 30) -> Options:
    return {"left": left, "right": right, "top": top, "bottom": bottom, "containLabel": True}


def legend(names: Sequence[str | Options], theme: Theme) -> Options:
    """A legend of the series with these names, which may have icons of their own; it scrolls where space is short."""
    return {"data": list(names), "top": 0, "textStyle": {"color": theme.text}, "show": bool(names), "type": "scroll"}


def rounded(value: float) -> float:
    """The value to five digits: more cannot be seen, and fewer bytes are sent."""
    return float(f"{value:.5g}")


def escaped(text: str) -> str:
    """Text as HTML for a tooltip, where braces would be placeholders."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("{", "&#123;"), ("}", "&#125;")):
        text = text.replace(sign, entity)
    return text
