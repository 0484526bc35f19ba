"""Finds results folders by what a user gives: a run's id or name, `latest`, the folder itself, or a sweep's folder."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from shared.core.errors import NotFound
from shared.results.folder import newest_run, run_folders
from shared.results.sweeps import Sweep, read_sweep

_RUN = "run.json"


def find_folders(runs_dir: Path, requested: Sequence[str]) -> list[Path]:
    """The folders of runs, each once, in the order requested.

    A name gives all runs of that name, the oldest first; a sweep's folder gives its runs that have results.

    Raises:
        NotFound: no run has that name; the message suggests the nearest one.
    """
    found = dict.fromkeys(folder.resolve() for word in requested for folder in _find(runs_dir, word))
    return list(found)


def _find(runs_dir: Path, word: str) -> list[Path]:
    if word == "latest":
        return [newest_run(runs_dir)]
    for folder in (runs_dir / word, Path(word)):
        if not os.path.isdir(folder):  # `Path.is_dir` raises where a run's name is too long for a file's
            continue
        if (folder / _RUN).is_file():
            return [folder]
        sweep = read_sweep(folder)
        if sweep is not None:
            return _of_sweep(sweep, runs_dir)
    return folders_named(runs_dir, word)


def folders_named(runs_dir: Path, name: str) -> list[Path]:
    """The folders of all runs of a name, the oldest first.

    Raises:
        NotFound: there is none; the message suggests the nearest name or id.
    """
    known = run_folders(runs_dir)
    named = [folder for folder, info in reversed(known) if info.name == name]
    if named:
        return named
    words = {info.name for _, info in known} | {info.run for _, info in known}
    near = difflib.get_close_matches(name, sorted(words), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise NotFound(f"no run, name of a run or results folder {name!r} in {runs_dir}{hint}")


def _of_sweep(sweep: Sweep, runs_dir: Path) -> list[Path]:
    folders = [runs_dir / each.run for each in sweep.combinations if each.run]
    found = [folder for folder in folders if (folder / _RUN).is_file()]
    if not found:
        raise NotFound(f"the sweep ({' '.join(sweep.arguments)}) has no results in {runs_dir} yet")
    return found
