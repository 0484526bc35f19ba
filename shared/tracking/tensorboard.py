"""A run as TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path

import yaml

from shared.errors import NotFound
from shared.tracking.scalars import Tracked

_FILES = "events.out.tfevents.*"


def write_tensorboard(tracked: Tracked, folder: Path) -> None:
    """Write the run into a folder, in the place of what an earlier export left there (hidden until that is done).

    Raises:
        NotFound: the package `tensorboard` is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise NotFound("TensorBoard is not installed: pip install 'stratafl[tensorboard]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    before = [path.rename(path.with_name(f".{path.name}")) for path in folder.glob(_FILES)]
    with SummaryWriter(str(folder), filename_suffix=f".{tracked.info.run}") as writer:
        for step in tracked.steps:
            for name, value in step.figures.items():
                writer.add_scalar(name, value, step.round_no, walltime=step.at_s)
        spec = yaml.safe_dump(tracked.info.spec.model_dump(mode="json", exclude_none=True), sort_keys=False)
        for name, words in (("spec", spec), ("tags", yaml.safe_dump(tracked.tags))):
            indented = "".join(f"    {line}\n" for line in words.splitlines())  # Markdown: as it is
            writer.add_text(name, indented, 0, walltime=tracked.begun_s)
    for path in before:
        path.unlink(missing_ok=True)
