"""What the text of a cell may be: a missing value, a number in some notation, a number with a unit, a date."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property

import numpy as np
import numpy.typing as npt

_NOT_THERE = ("?", "-", "--", ".", "..", "NA", "N/A", "n/a", "n.a.", "na", "<NA>", "#N/A", "#NA", "#N/A N/A")
_NULL = ("nan", "NaN", "NAN", "-nan", "-NaN", "NULL", "null", "None", "NONE", "#VALUE!", "#DIV/0!", "#REF!", "#NUM!")
MARKS = frozenset({*_NOT_THERE, *_NULL})
"""Texts that mean a missing value, as R, pandas, Excel, databases and the UCI repository write it."""
Numbers = npt.NDArray[np.float64]
PREFIX = r"(?P<sign>[+-](?=[$€£¥₹]))?(?P<prefix>[$€£¥₹]|[A-Z]{3}(?= ))?\s*"
UNIT = r"\s*(?P<unit>%|[^\W\d_].{0,15}|[$€£¥₹°µ].{0,8})?"


@dataclass(frozen=True)
class Notation:
    """How numbers are written.

    Attributes:
        decimal: the decimal sign.
        thousands: the sign between groups of three digits; empty if there is none.
    """

    decimal: str = "."
    thousands: str = ""

    def __str__(self) -> str:
        groups = f" and {self.thousands!r} between thousands" if self.thousands else ""
        return f"the decimal sign {self.decimal!r}{groups}"

    @cached_property
    def pattern(self) -> str:
        """The regular expression of a number."""
        whole, part = "[0-9]+", re.escape(self.decimal)
        if self.thousands:
            whole = rf"(?:[1-9][0-9]{{0,2}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|{whole})"
        return rf"[+-]?(?:{whole}(?:{part}[0-9]*)?|{part}[0-9]+)(?:[eE][+-]?[0-9]+)?"

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def _plain(self) -> re.Pattern[str]:
        """Texts that are numbers of this notation if they are numbers for Python."""
        return re.compile(rf"[0-9eE+\-{re.escape(self.decimal)}]*")

    @cached_property
    def measured(self) -> re.Pattern[str]:
        """A number with a currency before it or a unit behind it, as the groups `prefix` and `unit`."""
        return re.compile(rf"{PREFIX}(?P<number>{self.pattern}){UNIT}")

    def number(self, text: str) -> float:
        """Returns the number that a text is, NaN if it is none, or is beyond float64."""
        plain = self._for_python(text)
        found = np.nan if plain is None else float(plain)
        return found if math.isfinite(found) else np.nan

    def exact(self, text: str) -> Decimal:
        """Returns a finite number without rounding: ids of 17 digits are no longer told apart as float64."""
        plain = self._for_python(text) or "NaN"
        try:
            return Decimal(plain)
        except InvalidOperation:  # its exponent has too many digits: it is 0 as float64
            return Decimal(float(plain))

    def numbers(self, texts: Sequence[str]) -> Numbers:
        """Returns texts as numbers, NaN where one is none, or is beyond float64."""
        if self._plain.fullmatch("".join(texts)):
            pointed = texts if self.decimal == "." else [text.replace(self.decimal, ".") for text in texts]
            with suppress(ValueError):  # such as `1-2`
                found = np.fromiter(map(float, pointed), np.float64, len(texts))
                return np.where(np.isfinite(found), found, np.nan)
        known = {text: self.number(text) for text in set(texts)}
        return np.fromiter(map(known.__getitem__, texts), np.float64, len(texts))

    def _for_python(self, text: str) -> str | None:
        """Returns a number as Python writes it; None if the text is none."""
        plain = text.replace("\N{MINUS SIGN}", "-")
        if not self._whole.fullmatch(plain):
            return None
        if self.thousands:
            plain = plain.replace(self.thousands, "")
        return plain.replace(self.decimal, ".")

    def unit(self, text: str) -> str:
        """Returns the currency or unit of a number, empty if the text is no number or has none."""
        found = self.measured.fullmatch(text)
        return "" if found is None else (found["prefix"] or found["unit"] or "").strip()

    def bare(self, text: str) -> str:
        """Returns a number without its currency and unit; another text as it is."""
        return _bare(self.measured.fullmatch(text), text)


_GROUPING = (" ", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}", "'", "\N{RIGHT SINGLE QUOTATION MARK}")
POINT, COMMA = Notation(), Notation(",")
NOTATIONS = (
    POINT,
    COMMA,
    Notation(".", ","),
    Notation(",", "."),
    *(Notation(decimal, thousands) for thousands in _GROUPING for decimal in ".,"),
)
"""The notations that are recognised; of those that fit the earlier one is taken."""

_BARE = re.compile(rf"{PREFIX}(?P<number>[+-]?[0-9.,](?:[0-9.,'’\s]*[0-9])?){UNIT}")


def bare(text: str) -> str:
    """Returns a number of any notation without its currency and unit; another text as it is."""
    return _bare(_BARE.fullmatch(text), text)


def _bare(found: re.Match[str] | None, text: str) -> str:
    return text if found is None else (found["sign"] or "") + found["number"]


CODE = re.compile(r"0[0-9]+")
"""Digits that begin with zero, as postal codes do: equal numbers may be different codes."""


# ---- dates

_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
_ZONE = r"(?P<zone>Z|[+-]\d{2}:?\d{2})?"
_YEAR_FIRST = rf"(?P<year>\d{{4}})[-/](?P<month>\d{{1,2}})(?:[-/](?P<day>\d{{1,2}}))?(?:[T ]{_CLOCK}\s*{_ZONE})?"
_YEAR_LAST = rf"(?P<a>\d{{1,2}})[-/.](?P<b>\d{{1,2}})[-/.](?P<year>\d{{4}})(?:[, ]+{_CLOCK})?"
YEAR_FIRST, YEAR_LAST, CLOCK = (re.compile(pattern, re.ASCII) for pattern in (_YEAR_FIRST, _YEAR_LAST, _CLOCK))
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
OTHER = re.compile(
    rf"(?:\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2}}|\d{{1,2}}[-. ]+{_MONTH}[-, ]+\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
    r"(?:[, ]+\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(?::\d{2})? ?[ap]\.?m\.?",
    re.ASCII | re.IGNORECASE,
)
COMPACT = re.compile(r"(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
"""Dates as in 20240131, which are numbers as well."""


def is_date(text: str) -> bool:
    """Returns whether a text looks like a date or a time of day."""
    return any(form.fullmatch(text) for form in (YEAR_FIRST, YEAR_LAST, CLOCK, OTHER))


def how_dates_are_read(text: str) -> str:
    """Returns why a text is not read as a date, and what is."""
    if YEAR_LAST.fullmatch(text):
        return "the column does not tell whether days or months are first: write dates as in 2024-01-31"
    return "a date is read if it is 2024-01-31, 31.1.2024, or 2024-01-31T08:30:00Z"


def seconds(texts: Iterable[str]) -> list[float]:
    """Returns dates as seconds since 1970 and times of day as seconds since midnight, NaN where a text is neither.

    Times without a zone are taken as UTC. Whether 3/4/2024 is in March or April is what the other dates of the column
    allow; where they allow both, all such dates are NaN.
    """
    listed = list(texts)
    days_first = _days_first(listed)
    return [_seconds(text, days_first) for text in listed]


def _days_first(texts: Iterable[str]) -> bool | None:
    """Returns whether days come before months where the year is last; None if that cannot be told."""
    pairs = [(int(found["a"]), int(found["b"])) for text in texts if (found := YEAR_LAST.fullmatch(text))]
    first, second = any(a > 12 for a, _ in pairs), any(b > 12 for _, b in pairs)
    return first if first != second else None


def _seconds(text: str, days_first: bool | None) -> float:
    if found := CLOCK.fullmatch(text):
        return int(found["hour"]) * 3600 + int(found["minute"]) * 60 + float(found["second"] or 0)
    if found := YEAR_FIRST.fullmatch(text):
        return _since_1970(found, int(found["month"]), int(found["day"] or 1), found["zone"] or "")
    if (found := YEAR_LAST.fullmatch(text)) and days_first is not None:
        day, month = (found["a"], found["b"]) if days_first else (found["b"], found["a"])
        return _since_1970(found, int(month), int(day), "")
    if COMPACT.fullmatch(text):
        return _seconds(f"{text[:4]}-{text[4:6]}-{text[6:]}", days_first)
    return np.nan


def _since_1970(found: re.Match[str], month: int, day: int, zone: str) -> float:
    try:
        begun = datetime(int(found["year"]), month, day, int(found["hour"] or 0), int(found["minute"] or 0), tzinfo=UTC)
    except ValueError:
        return np.nan
    sign = -1 if zone.startswith("+") else 1
    digits = zone.strip("+-Z").replace(":", "") or "0000"
    return begun.timestamp() + float(found["second"] or 0) + sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
