"""Figures as people read them."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """An accuracy as people read it."""
    return "-" if share is None else f"{100 * share:.2f} %"


def number(value: float | None, digits: int = 4) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def size(n_bytes: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def duration(seconds: float | None) -> str:
    """Seconds as people read them: `0.063 s`, `8.3 s`, `2:05`, `1:02:05`."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
