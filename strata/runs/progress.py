"""Following a run and showing its progress on a terminal or in a log."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from shared.core.formatting import duration, number, size
from shared.core.records import Record
from shared.run_records.events import Event
from shared.run_records.rounds import Evaluation
from shared.run_records.runs import FINAL, RunInfo
from shared.run_records.visits import FailureInfo
from strata.api.client import Client

_IDLE_S = 2.0
_CHECK_EVERY_S = 0.5
_READ_EVERY_S = 0.2
_BAR = (10, 24)
"""Smallest and largest width of the progress bar, in columns."""


class View(Protocol):
    """Shows the progress of a run."""

    def show(self, info: RunInfo, told: Told) -> None:
        """Show the run, and what its events have told since it was first shown."""

    def say(self, text: str) -> None:
        """Print a sentence, such as a line of the run's plan."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def follow(client: Client, run: str, view: View, *, check: Callable[[], None] = lambda: None) -> RunInfo:
    """Show a run until it has ended, and return it; the arguments are those of `changes`."""
    told, n_planned, n_noted = Told(), 0, 0
    for info in changes(client, run, take=told.take, check=check):
        for text in (*info.plan[n_planned:], *(f"note: {note}" for note in info.notes[n_noted:])):
            view.say(text)
        n_planned, n_noted = len(info.plan), len(info.notes)
        view.show(told.joined(info), told)
    return info


def changes(
    client: Client,
    run: str,
    *,
    take: Callable[[Event], None] = lambda event: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[RunInfo]:
    """The run as it is, and again whenever it may have changed, until it has ended.

    Events only say when to read the run again: a missed or repeated event changes nothing.

    Args:
        client: client of the run's cloud.
        run: id of the run.
        take: is called with each event.
        check: called about every half second; raises if the run cannot continue.
    """
    info = client.run(run)
    yield info
    if info.status in FINAL:
        return
    read_at, checked_at = 0.0, time.monotonic()
    for event in client.events(info.run, idle_s=_IDLE_S):
        if event is None or time.monotonic() - checked_at > _CHECK_EVERY_S:
            check()
            checked_at = time.monotonic()
        if event is not None:
            take(event)
        if event is not None and event.kind != "run.status" and time.monotonic() - read_at < _READ_EVERY_S:
            continue
        info, read_at = client.run(info.run), time.monotonic()
        yield info
        if info.status in FINAL:
            return


@dataclass
class Told:
    """What only events tell: the run's document has it at the end.

    Attributes:
        n_lost: number of lost contributions.
        newest: the newest evaluation of the global model, and the round after which it was made.
    """

    n_lost: int = 0
    newest: tuple[Evaluation, int] | None = None

    def take(self, event: Event) -> None:
        """Count lost contributions; keep the newest evaluation."""
        if event.kind == "contribution.lost":
            self.n_lost += FailureInfo.model_validate(_fields(FailureInfo, event)).n_lost
        elif event.kind == "round.evaluated" and (event.data.get("evaluation") or {}).get("global"):
            self.newest = Evaluation.model_validate(event.data["evaluation"]["global"]), event.data["round_no"]

    def joined(self, info: RunInfo) -> RunInfo:
        """The run with the newest evaluation. Once the run has ended, its own scores are the newest."""
        if self.newest is None or (info.status in FINAL and info.score is not None):
            return info
        return info.replace(**self.newest[0].of_run)

    def score(self, info: RunInfo) -> str:
        """The run's score; where it is that of an earlier round than the newest, with that round."""
        score = info.headline.text(info.score)
        is_old = self.newest is not None and self.newest[1] != info.rounds and info.status not in FINAL
        return f"{score} after {info.spec.sync.round_word} {self.newest[1]}" if self.newest and is_old else score


class LiveView:
    """One line on a terminal that is redrawn; a narrow terminal shows fewer figures."""

    def __init__(self, console: Console) -> None:
        self._bar = BarColumn(bar_width=_BAR[1])
        self._progress = Progress(
            TextColumn("{task.description}"),
            self._bar,
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")

    def show(self, info: RunInfo, told: Told) -> None:
        """Redraw the line."""
        words = " ".join(filter(None, [info.name, info.status, info.phase]))
        n_rounds = len(str(info.num_rounds))
        room = self._progress.console.width - cell_len(f"{words} {'':{2 * n_rounds}}/  0:00:00 ETA 0:00:00 ")
        text = figures(info, told, room - _BAR[0])
        self._bar.bar_width = min(max(room - cell_len(text), _BAR[0]), _BAR[1])
        self._progress.update(
            self._task,
            description=f"{escape(info.name)} [bold]{info.status}[/bold] {info.phase or ''}".rstrip(),
            completed=info.rounds,
            total=info.num_rounds,
            figures=text,
        )

    def say(self, text: str) -> None:
        """Print a sentence above the line."""
        self._progress.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class LineView:
    """One line per change, for output that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: tuple[str, int, float | None, str | None] | None = None

    def show(self, info: RunInfo, told: Told) -> None:
        """Print a line if the round, status, score or reason has changed."""
        now = (info.status, info.rounds, info.score, info.reason)
        if now != self._shown:
            self._shown = now
            eta = _eta_s(info)
            line = f"{info.status:<9} round {info.rounds}/{info.num_rounds}  {figures(info, told)}"
            self._console.print(line + (f"  ETA {duration(eta)}" if eta else ""), markup=False, highlight=False)

    def say(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class NotebookView:
    """One line with a bar in the output of a notebook's cell, which is replaced; sentences are kept below it.

    Rich redraws lines in notebooks only with ipywidgets, which need an extension of the notebook server.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._line, self._said = "", list[str]()

    def show(self, info: RunInfo, told: Told) -> None:
        """Replace the line."""
        words = f"<b>{html.escape(info.name)}</b> {html.escape(' '.join(filter(None, [info.status, info.phase])))}"
        bar = f'<progress value="{info.rounds}" max="{info.num_rounds}"></progress> {info.rounds}/{info.num_rounds}'
        self._line = f"<div>{words} {bar} <small>{html.escape(figures(info, told))}</small></div>"
        self._update()

    def say(self, text: str) -> None:
        """Add a sentence."""
        self._said.append(f"<div><small>{html.escape(text)}</small></div>")
        self._update()

    def _update(self) -> None:
        from IPython import display

        shown: Any = display.HTML("".join([self._line, *self._said]))  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display.display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def view_on(console: Console) -> View:
    """The view that suits a console: a line that is redrawn, in a notebook or a terminal, or a line per change."""
    if console.is_jupyter:
        return NotebookView()
    return LiveView(console) if console.is_terminal else LineView(console)


def figures(info: RunInfo, told: Told, room: int | None = None) -> str:
    """The figures of a run on one line; for a waiting run, the reason why it waits.

    Args:
        info: the run.
        told: what its events have told.
        room: width in columns; figures that do not fit are left out, the least important first. None means no limit.
    """
    if info.reason and info.status not in FINAL:
        return info.reason
    parts = {
        info.headline.label: told.score(info),
        "loss": number(info.loss),
        "up": size(info.bytes_up),
        "down": size(info.bytes_down),
        "simulated": duration(info.simulated_s),
    }
    lost = [f"{told.n_lost} lost"] if told.n_lost else []
    while True:
        text = "  ".join([*(f"{name} {value}" for name, value in parts.items()), *lost])
        if room is None or cell_len(text) <= room or len(parts) == 1:
            return text
        parts.popitem()


def _fields(record: type[Record], event: Event) -> dict[str, Any]:
    """The fields of a record in an event's data."""
    return {name: event.data[name] for name in record.model_fields if name in event.data}


def _eta_s(info: RunInfo) -> float | None:
    """Estimated seconds until the end, at the average pace so far."""
    left = info.num_rounds - info.rounds
    return left * info.wall_s / info.rounds if info.rounds and left > 0 and info.status not in FINAL else None
