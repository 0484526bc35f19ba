"""The parts of a paper's page that are made from its measured runs: tables, curves, claims, what was not run.

On the page each stands between two comments, `<!-- measured: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.papers.claims import Claim, Value
from benchmarks.papers.measured import Further, Kept, Measured
from benchmarks.papers.settings import Setting, fingerprint_of
from shared.core.errors import NotFound
from shared.plots.picture import Axis, Lines, Picture, Series

DOCS = Path(__file__).parents[2] / "docs"
CLAIMS, NOT_RUN = "claims", "not run"
_BLOCK = re.compile(r"<!-- measured: (?P<name>[^>]+?) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A figure of a run as mean and sample deviation over the seeds, with so many decimal places."""

    title: str
    value: Value
    decimals: int = 1


@dataclass(frozen=True)
class Table:
    """A row for each setting, a column for each figure; `paper` has the paper's cells of a row, by setting."""

    settings: tuple[str, ...]
    columns: tuple[Column, ...]
    paper: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """A picture `docs/algorithms/NAME.svg`: a series over rounds, a line for each pair of setting and series.

    The line is the mean over seeds, the band from their least to their largest.
    """

    title: str
    lines: tuple[tuple[str, str, str], ...]
    y: str = "accuracy"
    unit: str = "share"


@dataclass(frozen=True)
class Page:
    """What is measured for a page in `docs/algorithms/`.

    Attributes:
        name: of the page.
        hypotheses: in words, printed before anything runs.
        settings: the most valuable first.
        claims, tables, curves: what the page shows; the latter two by the names of their places on the page.
        further: reads series of its own from a results folder.
        edges: of the local topology.
    """

    name: str
    hypotheses: tuple[str, ...]
    settings: tuple[Setting, ...]
    claims: tuple[Claim, ...]
    tables: Mapping[str, Table] = field(default_factory=dict)
    curves: Mapping[str, Curves] = field(default_factory=dict)
    further: Further | None = None

    @property
    def path(self) -> Path:
        """The page's file."""
        return DOCS / "algorithms" / f"{self.name}.md"

    def known(self, kept: Kept) -> list[Measured]:
        """The kept runs of the settings as they are now."""
        now = {(each.key, seed): fingerprint_of(each, seed) for each in self.settings for seed in each.seeds}
        return [run for run in kept.runs if now.get((run.setting, run.seed)) == run.fingerprint]

    def parts(self, kept: Kept) -> dict[str, str]:
        """The text of every place on the page."""
        runs = self.known(kept)
        tables = {name: self._table(table, runs) for name, table in self.tables.items()}
        pictures = {name: f"![{each.title}]({name}.svg)" for name, each in self.curves.items()}
        return {**tables, **pictures, CLAIMS: self._claims(runs), NOT_RUN: self._not_run(runs)}

    def text(self, kept: Kept) -> str:
        """The page with these parts.

        Raises:
            NotFound: the page has no place for one of them, or a place for something else.
        """
        return replaced(self.path, self.parts(kept))

    def pictures(self, kept: Kept) -> Iterator[tuple[Path, Picture]]:
        """The pictures of the curves, with the paths of their files."""
        runs = self.known(kept)
        for name, curves in self.curves.items():
            yield self.path.with_name(f"{name}.svg"), self._picture(name, curves, runs)

    def _setting(self, key: str) -> Setting:
        return next(each for each in self.settings if each.key == key)

    def _table(self, table: Table, runs: Sequence[Measured]) -> str:
        paper = ("the paper",) if table.paper else ()
        rows = []
        for key in table.settings:
            of_key = [run for run in runs if run.setting == key]
            cells = [_mean([column.value(run) for run in of_key], column.decimals) for column in table.columns]
            rows.append(
                [
                    self._setting(key).what or f"`{key}`",
                    *cells,
                    str(len(of_key)),
                    *([table.paper.get(key, "")] if paper else []),
                ]
            )
        return rows_of(["", *(column.title for column in table.columns), "seeds", *paper], rows)

    def _claims(self, runs: Sequence[Measured]) -> str:
        rows = []
        for claim in self.claims:
            ours, verdict = claim.cells(runs)
            pair = f"{self._setting(claim.ours).title} against {self._setting(claim.other).title}"
            rows.append([claim.text, claim.paper, ours, verdict, pair])
        return "\n".join(
            (
                rows_of(["claim", "the paper", "ours", "verdict", "settings"], rows),
                "",
                "Differences are paired by seed, ± half the 95 % t-interval. A claim is *shown* if this excludes 0 in",
                "the claimed direction, else *refuted* if it excludes half the claimed gain, else *undecided*.",
                "",
                f"    python -m benchmarks.papers {self.name}",
            )
        )

    def _not_run(self, runs: Sequence[Measured]) -> str:
        have = {(run.setting, run.seed) for run in runs}
        lines = []
        for each in self.settings:
            missing = [seed for seed in each.seeds if (each.key, seed) not in have]
            if missing:
                seeds = f"seed{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
                lines.append(f"- {each.title}, {seeds}: `{each.command}`")
        return "\n".join(lines) or "Everything above has run."

    def _picture(self, name: str, curves: Curves, runs: Sequence[Measured]) -> Picture:
        series = []
        for number, (key, what, title) in enumerate(curves.lines):
            columns = [
                *zip(*(run.series[what] for run in runs if run.setting == key and what in run.series), strict=False)
            ]
            at = [place for place, values in enumerate(columns, start=1) if None not in values]
            values = [[value for value in columns[place - 1] if value is not None] for place in at]
            if at:
                series.append(
                    Series(
                        name=title,
                        x=tuple(map(float, at)),
                        y=tuple(map(statistics.fmean, values)),
                        low=tuple(map(min, values)),
                        high=tuple(map(max, values)),
                        colour=number,
                        dash=number % 4,
                        marker=None,
                    )
                )
        panel = Lines(x=Axis(label="round", whole=True), y=Axis(label=curves.y, unit=curves.unit), series=tuple(series))
        return Picture(name=name, title=curves.title, panels=(panel,))


def replaced(path: Path, parts: Mapping[str, str]) -> str:
    """The text of a page with these parts in their places.

    Raises:
        NotFound: the page has no place for one of them, or a place for something else.
    """
    written = path.read_text(encoding="utf-8")
    places = [match["name"] for match in _BLOCK.finditer(written)]
    if sorted(places) != sorted(parts):
        raise NotFound(f"{path.name} has places for {sorted(places)}, measured are {sorted(parts)}")
    return _BLOCK.sub(lambda match: _block(match["name"], parts[match["name"]]), written)


def _block(name: str, content: str) -> str:
    return f"<!-- measured: {name} -->\n{content}\n<!-- end of {name} -->"


def rows_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _mean(values: Sequence[float | None], decimals: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "" if not values else "never"
    deviation = f" ± {statistics.stdev(known):.{decimals}f}" if len(known) > 1 else ""
    missing = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    return f"{statistics.fmean(known):.{decimals}f}{deviation}{missing}"
