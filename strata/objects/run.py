"""`Run`: a run of a cloud, or one that was saved in a results folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from shared.core.errors import Conflict, DeadlineExceeded, StrataError, TooLarge, UnknownName, WireError
from shared.core.files import write_file
from shared.core.formatting import percent
from shared.results.folder import read_round, read_rounds, read_run
from shared.results.group_scores import group_rows
from shared.results.lookup import find_folders
from shared.results.reader import read_history, read_seats
from shared.results.report.figures import pictures
from shared.results.report.page import report as make_report
from shared.results.text_tables import run_figures, status_words
from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail, RoundInfo
from shared.run_records.runs import FINAL, RunInfo, SeatInfo, Status
from shared.spec.experiment import ExperimentSpec
from strata.api.client import Client
from strata.objects import html
from strata.objects.connection import Connection
from strata.objects.frames import class_table, flat, frame, round_row, visit_rows
from strata.objects.plot import Plot
from strata.output import quiet, stderr
from strata.runs.download import pull_run
from strata.runs.progress import changes, follow, view_on
from strata.runs.run_and_wait import await_results, pull_ended

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from shared.training.inference import Predictions, TrainedModel

T = TypeVar("T")
MAX_MODEL_BYTES = 2**34
"""Size of the largest model that is loaded."""
_IDLE_S = 1.0


class RunFailed(StrataError):
    """A run that was waited for has failed; the message gives the cloud's reason."""

    code = "run_failed"


class Run:
    """A run. Its figures are read from the cloud whenever they are asked for, until it has ended.

    What a cloud on this machine has written is still there when that cloud is closed, and so are the run's results.
    """

    def __init__(self, info: RunInfo, connection: Connection | None = None, folder: Path | None = None) -> None:
        self._info, self._connection, self._folder = info, connection, folder
        self._copy: Path | None = None
        self._kept = ""

    # ---- status and figures

    @property
    def id(self) -> str:
        """Its id, which is the name of its results folder."""
        return self._info.run

    @property
    def name(self) -> str:
        """The name of its spec."""
        return self._info.name

    @property
    def spec(self) -> ExperimentSpec:
        """Its spec; once it has started, with its numbers of devices and edges."""
        return self.info.spec

    @property
    def info(self) -> RunInfo:
        """Its record; of a run that has ended, the one known here (`refresh` reads it anew)."""
        return self._info if self._info.status in FINAL else self.refresh()

    def refresh(self) -> RunInfo:
        """Read its record anew."""
        self._info = self._read(lambda client: client.run(self.id), read_run)
        return self._info

    @property
    def status(self) -> Status:
        """`pending`, `starting`, `running`, `pausing`, `paused`, `stopping`, `completed`, `failed` or `stopped`."""
        return self.info.status

    @property
    def accuracy(self) -> float | None:
        """The algorithm's headline accuracy, of what `info.accuracy_of` says; None before the first evaluation."""
        return self.info.accuracy

    @property
    def loss(self) -> float | None:
        """The loss that goes with `accuracy`."""
        return self.info.loss

    @property
    def folder(self) -> Path | None:
        """Its results folder, or the copy of it that `save` made, if there is one on this machine."""
        return self._folder or self._copy

    # ---- control

    def wait(self, timeout_s: float | None = None, *, progress: bool = True) -> Self:
        """Wait until it has ended. Ctrl-C ends the waiting; the run goes on.

        Args:
            timeout_s: longest wait, which is checked every few seconds; None means no limit.
            progress: whether to show its progress, in a notebook or on stderr.

        Raises:
            RunFailed: it failed.
            DeadlineExceeded: it has not ended in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def check() -> None:
            self._check()
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceeded(f"run {self.id} has not ended after {timeout_s:g} s")

        if self._info.status not in FINAL:
            with view_on(stderr() if progress else quiet()) as view:
                self._info = follow(self._client, self.id, view, check=check)
            self._collect()
        if self._info.status == "failed":
            reason = self._info.reason or "the cloud gives no reason"
            raise RunFailed(f"run {self.id} failed: {reason}{'; ' * bool(self._kept)}{self._kept}")
        return self

    def pause(self) -> Self:
        """Pause it after its current round."""
        self._info = self._client.pause(self.id)
        return self

    def resume(self, *, accept_changes: bool = False) -> Self:
        """Resume it after a pause, a stop or a failure; `accept_changes` goes on with other data and packages."""
        self._info = self._client.resume(self.id, accept_changes=accept_changes)
        return self

    def change(self, *, max_devices: int) -> Self:
        """Make room for more devices while it goes on, from its next round on; needs `partition: sampled`."""
        self._info = self._client.change(self.id, max_devices=max_devices)
        return self

    def stop(self) -> Self:
        """Stop it now; its committed rounds are kept."""
        self._info = self._client.stop(self.id)
        return self

    # ---- records

    def rounds(self) -> Iterator[RoundInfo]:
        """Its training rounds in order, as they are committed and evaluated, until it has ended."""
        if self._is_closed:
            yield from (row for row in self._read_rounds(0) if row.kind == "train")
            return
        n = 0
        for info in changes(self._client, self.id, check=self._check):
            self._info = info
            rows = self._read_rounds(n) if n < info.rounds or info.status in FINAL else ()
            for row in _settled(rows, info):
                n += 1
                if row.kind == "train":
                    yield row
        self._collect()

    def round(self, round_no: int) -> RoundDetail:
        """One round with a record of each task."""
        return self._read(lambda client: client.round(self.id, round_no), lambda folder: read_round(folder, round_no))

    def devices(self) -> tuple[SeatInfo, ...]:
        """Its virtual devices: their data, profiles and agents."""
        return self._read(lambda client: client.seats(self.id).seats, read_seats)

    def events(self) -> Iterator[Event]:
        """Its events from the first on, as they come, until it has ended."""
        ended_as, n_silent = None, 0
        for event in self._client.events(self.id, idle_s=_IDLE_S):
            if event is None:
                n_silent += 1
                self._check()
                status = self.refresh().status
                if status in FINAL and (status == ended_as or n_silent > 1):
                    return
                continue
            n_silent, ended_as = 0, event.data.get("status") if event.kind == "run.status" else ended_as
            yield event

    def to_pandas(
        self, what: Literal["rounds", "visits", "devices", "groups", "classes", "confusion"] = "rounds"
    ) -> pd.DataFrame:
        """A table of its rounds so far, of all their tasks, of its devices, or of its last scores by group or class.

        Raises:
            NotFound: it has no table by class, or not yet.
            PandasMissing: pandas is not installed.
        """
        if what == "rounds":
            return frame((round_row(row) for row in self._read_rounds(0) if row.kind == "train"), "round_no")
        if what == "devices":
            return frame(map(flat, self.devices()), "seat")
        if what == "groups":
            return frame(group_rows(self.info), "group")
        if what in ("visits", "classes", "confusion"):
            with self.results() as folder:
                return frame(visit_rows(folder) if what == "visits" else class_table(folder, f"{what}.csv"))
        known = ["rounds", "visits", "devices", "groups", "classes", "confusion"]
        raise UnknownName("table", what, known, field="what")

    def model(self, name: str = "global") -> dict[str, torch.Tensor]:
        """A model of its last committed round, as a state dict: tensors by name.

        Raises:
            NotFound: it has no such model, or not yet.
            ModelNotUsable: the results folder holds that of another round.
        """
        from shared.results.saved_model import saved_state  # loads torch

        return self._read(partial(_download, self.id, name), lambda folder: saved_state(folder, name))

    def predict(self, samples: Any, model: str = "global") -> Predictions:
        """What a model of it says of new samples: names of classes with probabilities, or numbers in the target's unit.

        Args:
            samples: a `DataFrame`, a map of columns, an array, or the path of a table, an `.npz` (its key `x`), an
                image or a folder of images. They are read and preprocessed as the training data were.
            model: one of `info.models`, such as the own model of an edge.

        Raises:
            NotFound: it has no such model, or has not ended.
            DataMalformed, BadInput: a cell, an image or an array cannot be read so.
        """
        from shared.training.data.unseen import unseen  # loads torch

        trained = self.trained(model)
        return trained.predict(unseen(samples, trained.preprocessing).x)

    def trained(self, name: str = "global") -> TrainedModel:
        """A model of it, with its torch module (`.module`) and how samples become its batches (`.batch`).

        Raises:
            NotFound: it has no such model, or has not ended.
        """
        from shared.results.saved_model import saved_model  # loads torch

        with self.results(model=True) as folder:
            return saved_model(folder, name)

    def plot(self, name: str | None = None, *, round_no: int | None = None) -> Plot:
        """One of its pictures: a metric, `bytes`, `clients`, `partition`, `timeline`, and its algorithm's own.

        Args:
            name: of the picture; None means the headline metric, `accuracy` unless the spec names others.
            round_no: the round of the timeline; None means the slowest.

        Raises:
            UnknownName: it has no such picture; the message lists those it has.
        """
        with self.results() as folder:
            history = read_history(folder)
            found = {each.picture.name: each.picture for each in pictures(folder, history, round_no)}
        name = name or history.info.headline.label
        if name not in found:
            raise UnknownName("picture", name, list(found), field="name")
        return Plot(found[name])

    def save(self, into: str | os.PathLike[str] = "runs") -> Path:
        """Fetch its results with the global model into a folder of its id in `into`; the path of that folder.

        Those of a cloud of `strata.local` are on this machine already; this is the path of their folder.
        """
        if self._folder is not None:
            return self._folder
        self._fetch(Path(into, self.id), model=True)
        self._copy = Path(into, self.id)
        return self._copy

    @contextlib.contextmanager
    def results(self, *, model: bool = False) -> Iterator[Path]:
        """Its results folder, or a copy of it that is removed afterwards, which has models if `model` says so."""
        if self._folder is not None and self._info.status in FINAL:
            self._collect()
        here = self.folder if self._is_closed else self._folder
        if here is not None:
            yield here
            return
        with tempfile.TemporaryDirectory(prefix="strata-run-") as into:
            self._fetch(Path(into, self.id), model=model)
            yield Path(into, self.id)

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write a report of it, one HTML file, and return its path."""
        with self.results() as folder:
            write_file(Path(path), make_report([folder]).encode())
        return Path(path)

    # ---- where it is read

    @property
    def _client(self) -> Client:
        if self._connection is None:
            raise Conflict(f"run {self.id} was read from {self._folder}; no cloud is connected")
        return self._connection.client

    @property
    def _is_closed(self) -> bool:
        return self._connection is None or self._connection.closed

    def _check(self) -> None:
        if self._connection is not None:
            self._connection.check()

    def _read(self, fetch: Callable[[Client], T], read: Callable[[Path], T]) -> T:
        """From the cloud or, once the connection is closed, from the results folder."""
        return read(self.folder) if self._is_closed and self.folder is not None else fetch(self._client)

    def _fetch(self, folder: Path, *, model: bool) -> None:
        info = self.refresh()
        (pull_ended if info.status in FINAL else pull_run)(self._client, info, folder, model=model)

    def _read_rounds(self, skip: int) -> tuple[RoundInfo, ...]:
        """Its rounds of both kinds, without the first ones."""
        return self._read(lambda client: client.rounds(self.id, skip).rounds, lambda folder: read_rounds(folder)[skip:])

    def _collect(self) -> None:
        """Wait until the results folder of an ended run is complete, since its cloud may be stopped next."""
        if self._folder is not None and not self._is_closed:
            await_results(self._info, self._folder)
            self._kept = (self._connection and self._connection.keep(self._info, self._folder)) or ""

    # ---- how it is shown

    def __repr__(self) -> str:
        """As it was last known; reading it anew would need the cloud."""
        info = self._info
        figures = f"{info.rounds}/{info.num_rounds} rounds, accuracy {percent(info.accuracy)}"
        return f"<Run {info.run} {info.name!r}: {info.status}, {figures}>"

    def _repr_html_(self) -> str:
        with contextlib.suppress(StrataError):
            self.refresh()
        rows = [("run", self.id), ("status", status_words(self._info)), *run_figures(self._info)]
        return html.table(rows, title=self.name)


def load_run(run: str | os.PathLike[str] = "latest", runs_dir: str | os.PathLike[str] = "runs") -> Run:
    """A run that was saved: by its id, its name, `latest`, or the path of its results folder.

    Raises:
        NotFound: there is no such run.
    """
    folder = find_folders(Path(runs_dir), [os.fspath(run)])[-1]
    return Run(read_run(folder), folder=folder)


def _settled(rows: Sequence[RoundInfo], info: RunInfo) -> Iterator[RoundInfo]:
    """The rounds up to the first one that is still to be evaluated; evaluations run beside later rounds, in order."""
    spec, newest = info.spec, max((row.round_no for row in rows if row.evaluation is not None), default=0)
    for row in rows:
        skipped = spec.eval_every_s is None and row.round_no % spec.eval_every != 0 and row.round_no < info.num_rounds
        if info.status not in FINAL and row.round_no > newest and not skipped:
            return
        yield row


def _download(run: str, name: str, client: Client) -> dict[str, torch.Tensor]:
    """A model of a cloud, of limited size."""

    def whole() -> bytes:
        content = bytearray()
        for piece in client.download(run, "models", name):
            content += piece
            if len(content) > MAX_MODEL_BYTES:
                raise TooLarge(f"model {name} of run {run} has more than {MAX_MODEL_BYTES} bytes")
        return bytes(content)

    return _state_dict(client.patiently(whole))


def _state_dict(content: bytes) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise WireError(f"the model is not valid safetensors: {error}") from None
