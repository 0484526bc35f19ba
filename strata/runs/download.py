"""Fetching a run's results from the cloud."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from shared.core.errors import Conflict, NotFound, StrataError, WireError
from shared.core.files import naming
from shared.results.folder import RUN
from shared.results.lookup import find_folders
from shared.run_records.runs import FINAL, RunInfo
from strata.api.client import Client

_MODEL = "model.safetensors"


def pull_run(client: Client, info: RunInfo, folder: Path, *, model: bool = True) -> list[str]:
    """Fetch every results file, with `model` those of models too, into a folder; returns the sorted file names.

    Each file is written under a temporary name and renamed when it is complete; `run.json` comes last, so that a copy
    that was interrupted does not say that it is of a run that has ended.

    Raises:
        WireError: the cloud listed a name that leads out of the folder; then nothing is fetched.
        NotFound: of a run with committed rounds the cloud has no global model, or no results; the rest was fetched.
    """
    listed = client.file_names(info.run)
    names = [name for name in listed if name not in (_MODEL, RUN) and (model or not name.endswith(".safetensors"))]
    places = {name: _place(folder, name) for name in names}
    for name, place in places.items():
        _fetch(client, info.run, ("files", *PurePosixPath(name).parts), place)
    if model and _fetch_model(client, info, folder, listed):
        names.append(_MODEL)
    if RUN in listed:
        _fetch(client, info.run, ("files", RUN), folder / RUN)
    elif info.rounds:
        why = "were they removed there, or is its disk full?" if info.status in FINAL else "it has not written them yet"
        raise NotFound(f"the cloud has no results of run {info.run} ({why}); fetched: {', '.join(names) or 'nothing'}")
    return sorted([*names, *([RUN] if RUN in listed else [])])


def _fetch_model(client: Client, info: RunInfo, folder: Path, listed: Sequence[str]) -> bool:
    """Fetch the global model of the last committed round, else that of the results; whether there is one."""
    try:
        _fetch(client, info.run, ("models", "global"), folder / _MODEL)
        return True
    except StrataError as error:
        if error.status not in {NotFound.status, Conflict.status}:
            raise
        if _MODEL not in listed:  # no round has been committed, or the algorithm has no global model
            if info.rounds and error.status == Conflict.status:
                raise
            return False
    _fetch(client, info.run, ("files", _MODEL), folder / _MODEL)
    return True


@contextlib.contextmanager
def results_folders(
    runs: Sequence[str], url: str | None, runs_dir: Path, *, model: bool = False
) -> Iterator[list[Path]]:
    """The results folders of runs: those in `runs_dir`, or temporary copies of a cloud's, with `model` those of models.

    Raises:
        NotFound: a run does not exist.
    """
    if url is None:
        yield find_folders(runs_dir, runs)
        return
    with Client(url) as client, tempfile.TemporaryDirectory(prefix="strata-runs-") as into:
        infos = {info.run: info for info in map(client.run, runs)}
        for info in infos.values():
            pull_run(client, info, Path(into, info.run), model=model)
        yield [Path(into, run) for run in infos]


def _place(folder: Path, name: str) -> Path:
    """The local path of a file. Names come from the cloud and must not lead out of the folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise WireError(f"the cloud lists a file named {name!r}, which leads out of the results folder")
    return folder.joinpath(*path.parts)


def _fetch(client: Client, run: str, parts: tuple[str, ...], place: Path) -> None:
    part = place.with_name(f".{place.name}.part")
    place.parent.mkdir(parents=True, exist_ok=True)

    def whole() -> None:
        with part.open("wb") as file:
            for piece in client.download(run, *parts):
                with naming(place):
                    file.write(piece)

    try:
        client.patiently(whole)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
