"""The job scripts: pure text, made from a deployment. Nothing secret is in them, nor in the jobs' environments."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from shared.core.files import write_file
from shared.runtime import import_path
from strata.slurm.deployment import Deployment
from strata.slurm.options import AGENTS, CHECK, CORE, EDGES, Asked

_PROGRAMS = {
    CHECK: "strata.slurm.check_job",
    CORE: "strata.slurm.core_job",
    EDGES: "strata.slurm.node_job",
    AGENTS: "strata.slurm.node_job",
}


def script(deployment: Deployment, kind: str) -> str:
    """The script of a kind of jobs. The environment of who submits it stays where it is: it may hold tokens."""
    options, folder = deployment.options, deployment.folder
    log = "%a" if kind in (EDGES, AGENTS) else "%j"
    given = {
        "job-name": deployment.job_name(kind),
        "chdir": deployment.note.work_dir,
        "output": f"{folder}/logs/{kind}-{log}.out",
        "open-mode": "append",
        "export": "NONE",
        "nodes": "1",
        "ntasks": "1",
        "signal": f"B:USR1@{options.lead_s}",
        **dict(_asked(options.asked(kind), kind, options.agents_per_node)),
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in given.items()]
    lines.append("#SBATCH --no-requeue" if kind == CHECK else "#SBATCH --requeue")
    lines += [f"#SBATCH {each}" for each in options.asked(kind).more]
    words = [deployment.note.python, "-P", import_path.__file__, _PROGRAMS[kind]]
    words += [*([kind] if kind in (EDGES, AGENTS) else []), str(folder)]
    setup = [*options.setup]
    if deployment.note.python_path:
        setup.append(f"export PYTHONPATH={shlex.quote(deployment.note.python_path)}")
    return "\n".join(["#!/bin/bash", *lines, "umask 077", *setup, f"exec {shlex.join(words)}", ""])


def _asked(asked: Asked, kind: str, agents: int) -> Iterator[tuple[str, str]]:
    """The options of `sbatch` that the user named; an agent has a core of its own."""
    for name in ("partition", "account", "qos", "constraint", "mem", "time"):
        value = getattr(asked, name)
        if value is not None and not (name == "time" and kind == CHECK):
            yield name, value
    yield "cpus-per-task", str(max(asked.cpus, agents if kind == AGENTS else 1))
    if asked.gres is not None:
        yield "gres", asked.gres


def write_scripts(deployment: Deployment) -> None:
    """Write the scripts of all kinds into the deployment's folder."""
    for kind in _PROGRAMS:
        write_file(deployment.folder / "jobs" / f"{kind}.sh", script(deployment, kind).encode(), mode=0o700)
