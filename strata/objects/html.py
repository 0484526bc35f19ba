"""Tables for the output of notebooks. Names and reasons come from other machines, so every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), title: str = "") -> str:
    """Rows of text as an HTML table, below a bold title."""
    caption = f"<b>{escape(title)}</b>" if title else ""
    head = f"<thead>{_row(header, 'th')}</thead>" if header else ""
    return f"{caption}<table>{head}<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
