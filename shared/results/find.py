"""Results folders by what a person calls a run: its id, its name, `latest`, or the folder itself."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from shared.errors import NotFound
from shared.results.files import newest_run, run_folders


def find_folders(runs_dir: Path, wanted: Sequence[str]) -> list[Path]:
    """The folders of runs, each once, in the order asked for; a name stands for all its runs, the oldest first.

    Raises:
        NotFound: nothing is called so; names what is nearest.
    """
    found = dict.fromkeys(folder.resolve() for word in wanted for folder in _find(runs_dir, word))
    return list(found)


def _find(runs_dir: Path, word: str) -> list[Path]:
    if word == "latest":
        return [newest_run(runs_dir)]
    for folder in (runs_dir / word, Path(word)):
        if (folder / "run.json").is_file():
            return [folder]
    known = run_folders(runs_dir)
    named = [folder for folder, info in reversed(known) if info.name == word]
    if named:
        return named
    words = {info.name for _, info in known} | {info.run for _, info in known}
    near = difflib.get_close_matches(word, sorted(words), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise NotFound(f"no run, name of a run or results folder {word!r} in {runs_dir}{hint}")
