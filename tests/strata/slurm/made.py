"""Deployments and Slurm's commands as tests of `strata.slurm` need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata.slurm.deployment import Deployment, Note
from strata.slurm.options import Options

SAYS = "#!/bin/bash\n"


def deployment(folder: Path, env: dict[str, str] | None = None, **options: Any) -> Deployment:
    """A deployment in a folder, whose tag is `abc`."""
    note = Note(
        tag="abc",
        options=Options.model_validate(options),
        python="/usr/bin/python3",
        runs_dir=str(folder / "runs"),
        work_dir=str(folder),
        env=env or {},
    )
    return Deployment.make(folder / "made", note)


def command(folder: Path, name: str, body: str) -> Path:
    """A program in a folder, which is to be on the path."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(SAYS + body)
    path.chmod(0o755)
    return path
