"""A run as TensorBoard's event files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import yaml

from shared.core.errors import NotFound
from shared.results.tracking.scalars import Step, Tracked

_FILES = "events.out.tfevents.*"
_ABSENT = "TensorBoard is not installed: pip install 'stratafl[tensorboard]'"


def check_tensorboard() -> None:
    """Raises if the package `tensorboard`, which writes the files, is not installed.

    Raises:
        NotFound: names what installs it.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise NotFound(_ABSENT)


class EventFiles:
    """The event files of a run. They replace earlier ones, which are hidden until `close` deletes them.

    Args:
        tracked: the run, whose spec and tags are written.
        folder: the folder of the run.

    Raises:
        NotFound: the package `tensorboard` is not installed.
    """

    def __init__(self, tracked: Tracked, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise NotFound(_ABSENT) from None
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(_FILES):
            path.rename(path.with_name(f".{path.name}"))
        self._before = list(folder.glob(f".{_FILES}"))
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{tracked.info.run}")
        spec = yaml.safe_dump(tracked.info.spec.model_dump(mode="json", exclude_none=True), sort_keys=False)
        for name, words in (("spec", spec), ("tags", yaml.safe_dump(tracked.tags))):
            indented = "".join(f"    {line}\n" for line in words.splitlines())  # Markdown: as preformatted text
            self._writer.add_text(name, indented, 0, walltime=tracked.begun_s)

    def add(self, steps: Iterable[Step]) -> None:
        """Writes figures."""
        for step in steps:
            for name, value in step.figures.items():
                self._writer.add_scalar(name, value, step.round_no, walltime=step.at_s)
        self._writer.flush()

    def close(self) -> None:
        """Ends the files."""
        self._writer.close()
        for path in self._before:
            path.unlink(missing_ok=True)
        self._before = []


def write_tensorboard(tracked: Tracked, folder: Path) -> None:
    """Writes a run so far into a folder, in place of an earlier export.

    Raises:
        NotFound: the package `tensorboard` is not installed.
    """
    files = EventFiles(tracked, folder)
    try:
        files.add(tracked.steps)
    finally:
        files.close()
