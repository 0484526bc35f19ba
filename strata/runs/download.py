"""Fetching a run's results from the cloud."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from shared.core.errors import Conflict, NotFound, StrataError, WireError
from shared.results.lookup import find_folders
from shared.run_records.runs import RunInfo
from strata.api.client import Client

_MODEL = "model.safetensors"


def pull_run(client: Client, info: RunInfo, folder: Path, *, model: bool = True) -> list[str]:
    """Fetch every results file, with `model` those of models too, into a folder; returns the sorted file names.

    Each file is written under a temporary name and renamed when it is complete.

    Raises:
        WireError: the cloud listed a name that leads out of the folder; then nothing is fetched.
    """
    listed = [name for name in client.file_names(info.run) if name != _MODEL]
    names = listed if model else [name for name in listed if not name.endswith(".safetensors")]
    places = {name: _place(folder, name) for name in names}
    for name, place in places.items():
        _fetch(client, info.run, ("files", *PurePosixPath(name).parts), place)
    if not model:
        return sorted(names)
    try:
        _fetch(client, info.run, ("models", "global"), folder / _MODEL)
    except StrataError as error:
        if error.status not in {NotFound.status, Conflict.status}:  # a run without a committed round has no model
            raise
        return sorted(names)
    return sorted([*names, _MODEL])


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
                file.write(piece)

    try:
        client.patiently(whole)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
