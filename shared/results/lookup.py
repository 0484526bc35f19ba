"""Finds results folders by what a user gives: a run's id or name, `latest`, the folder itself, or a sweep's folder."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from shared.core.errors import NotFound
from shared.results.folder import RUN
from shared.results.run_list import runs_in
from shared.results.sweeps import Sweep, read_sweep


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
        return [runs_in(runs_dir).newest()]
    for folder in (runs_dir / word, Path(word)):
        if not os.path.isdir(folder):  # `Path.is_dir` raises where a run's name is too long for a file's
            continue
        if (folder / RUN).is_file():
            return [folder]
        sweep = read_sweep(folder)
        if sweep is not None:
            return _of_sweep(sweep, runs_dir)
    return folders_named(runs_dir, word)


def folders_named(runs_dir: Path, name: str) -> list[Path]:
    """The folders of all runs of a name, the oldest first.

    Raises:
        NotFound: there is none that can be read; the message suggests the nearest name or id.
    """
    known = runs_in(runs_dir)
    named = known.named(name)
    if named:
        return named
    words = {info.name for _, info in known.runs} | {info.run for _, info in known.runs}
    near = difflib.get_close_matches(name, sorted(words), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise NotFound(f"no run, name of a run or results folder {name!r} in {runs_dir}{hint}")


def _of_sweep(sweep: Sweep, runs_dir: Path) -> list[Path]:
    folders = [runs_dir / each.run for each in sweep.combinations if each.run]
    found = [folder for folder in folders if (folder / RUN).is_file()]
    if not found:
        raise NotFound(f"the sweep ({' '.join(sweep.arguments)}) has no results in {runs_dir} yet")
    return found
