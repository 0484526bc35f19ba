"""Starting a deployment, waiting until it is ready, seeing how it is, and ending it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.core.errors import BadInput, Conflict, DeadlineExceeded, NotReady
from strata.launcher.polling import poll_topology
from strata.slurm.commands import Slurm
from strata.slurm.connection import client_of
from strata.slurm.deployment import Address, Deployment, Note, folder_of, forwarded
from strata.slurm.fleet import submit
from strata.slurm.options import AGENTS, CHECK, CORE, EDGES, KINDS, Options
from strata.slurm.queue import Job
from strata.slurm.scripts import write_scripts

_LOOK_S, _END_S, _GONE_S = 1.0, 180.0, 10.0
_TAIL = 2000


def make(options: Options, runs_dir: Path, slurm: Slurm) -> Deployment:
    """The deployment of a name, none of whose jobs is in the queue, with its scripts; nothing is submitted.

    Raises:
        SlurmMissing: Slurm's commands are not on the path.
        Conflict: it runs already.
        BadInput: its folder has a name that Slurm would change.
    """
    slurm_bin, folder = slurm.check(), folder_of(options.name)
    if re.search(r"[\s%'\"\\]", str(folder)):
        raise BadInput(f"{folder}: Slurm takes no path with blanks, quotes, % or \\; STRATA_HOME names another folder")
    runs_dir = runs_dir.resolve()
    runs_dir.mkdir(parents=True, exist_ok=True)
    env = forwarded(os.environ)
    for name in ("STRATA_DATA_DIR", "STRATA_CACHE_DIR"):
        if env.get(name):
            env[name] = str(Path(env[name]).resolve())
    if (folder / "deployment.json").exists() and jobs_of(Deployment.open(folder), slurm):
        raise Conflict(f"the deployment {options.name} has jobs in the queue already: `strata slurm down` ends them")
    note = Note(
        tag=secrets.token_hex(3),
        options=options,
        python=sys.executable,
        python_path=os.environ.get("PYTHONPATH", ""),
        runs_dir=str(runs_dir),
        work_dir=os.getcwd(),
        slurm_bin=slurm_bin,
        env=env,
    )
    made = Deployment.make(folder, note)
    write_scripts(made)
    return made


def submit_all(deployment: Deployment, slurm: Slurm) -> None:
    """Submit the core, the edges and the agents; if one is refused, none stays in the queue."""
    options = deployment.options
    try:
        submit(deployment, slurm, EDGES, f"1-{options.edges}")
        submit(deployment, slurm, AGENTS, f"1-{options.nodes}")
        slurm.submit(deployment.folder / "jobs" / f"{CORE}.sh")  # last: its fleet submits what is not in the queue
    except BaseException:
        down(deployment, slurm)
        raise


def jobs_of(deployment: Deployment, slurm: Slurm) -> dict[str, list[Job]]:
    """The jobs of a deployment that have not ended, by kind."""
    names = {deployment.job_name(kind): kind for kind in (*KINDS, CHECK)}
    found: dict[str, list[Job]] = {}
    for job in slurm.jobs(names):
        found.setdefault(names[job.name], []).append(job)
    return found


def progress(jobs: dict[str, list[Job]]) -> str:
    """How many jobs of each kind run, and why others wait, in one line."""
    parts = []
    for kind in KINDS:
        found = jobs.get(kind, [])
        waiting = Counter("new" if job.reason in ("", "None") else job.reason for job in found if job.waits)
        running = sum(job.state == "RUNNING" for job in found)
        why = "".join(f", {n} waiting ({reason})" for reason, n in sorted(waiting.items()))
        parts.append(f"{kind}: {running} running{why}")
    return "; ".join(parts)


def wait_ready(
    deployment: Deployment, slurm: Slurm, ready_s: float, show: Callable[[str], None], *, whole: bool
) -> Address:
    """Wait until the cloud answers and has all edges, and one agent or all.

    Args:
        deployment: whose jobs have been submitted.
        slurm: Slurm's commands.
        ready_s: longest wait; jobs stay in the queue after it.
        show: gets the progress, once for each change.
        whole: whether to wait for all agents.

    Raises:
        NotReady: it is not in time, or its core ended; the message says what is missing.
    """
    deadline, shown, found = time.monotonic() + ready_s, "", ""
    looked, gone = 0.0, float("inf")  # when the queue was read, and since when the core is not in it
    while True:
        if time.monotonic() - looked >= deployment.options.every_s:
            jobs, looked = jobs_of(deployment, slurm), time.monotonic()
            found, gone = progress(jobs), float("inf") if CORE in jobs else min(gone, looked)
        address = deployment.address()
        missing = _missing(deployment, address, whole) if address is not None else ["cloud"]
        if address is not None and not missing:
            return address
        words = f"{found}; missing: {'; '.join(missing)}"
        if words != shown:
            show(words)
            shown = words
        if time.monotonic() - gone > _GONE_S:
            raise NotReady(f"the core's job is no longer in the queue{_log_end(deployment, CORE)}")
        if time.monotonic() > deadline:
            ends = "its jobs stay in the queue: `strata slurm down` ends them"
            raise NotReady(f"not ready after {ready_s:g} s: {words}; {ends}")
        time.sleep(_LOOK_S)


def _missing(deployment: Deployment, address: Address, whole: bool) -> list[str]:
    options = deployment.options
    edges = [options.edge_name(index + 1) for index in range(options.edges)]
    names = [name for index in range(options.nodes) for name in options.agent_names(index + 1)]
    agents = dict.fromkeys(names if whole else [], options.devices_per_agent)
    with client_of(deployment, address, 0.0) as client:
        info, missing = poll_topology(client, edges, agents)
    if info is not None and not info.n_devices and not missing:
        return ["devices"]
    return missing


def _log_end(deployment: Deployment, kind: str) -> str:
    """The end of the newest log of a kind of jobs, for a message."""
    logs = sorted((deployment.folder / "logs").glob(f"{kind}-*.out"), key=lambda path: path.stat().st_mtime)
    if not logs:
        return ""
    return f"; {logs[-1]} ends: {logs[-1].read_text(errors='replace')[-_TAIL:].strip()}"


def down(deployment: Deployment, slurm: Slurm) -> int:
    """End all jobs of a deployment, the core first, which would start others again; returns how many there were.

    Raises:
        DeadlineExceeded: some are still there.
    """
    deployment.end()
    ended = 0
    for kinds in ((CORE, CHECK), KINDS):
        found = _of_kinds(deployment, slurm, kinds)
        ended += len(found)
        slurm.cancel([job.id for job in found])
        deadline = time.monotonic() + _END_S
        while left := _of_kinds(deployment, slurm, kinds):
            if time.monotonic() > deadline:
                states = ", ".join(f"{job.id} {job.state}" for job in left)
                raise DeadlineExceeded(f"jobs have not ended within {_END_S:g} s: {states}")
            time.sleep(_LOOK_S)
    deployment.withdraw()
    return ended


def _of_kinds(deployment: Deployment, slurm: Slurm, kinds: Sequence[str]) -> list[Job]:
    jobs = jobs_of(deployment, slurm)
    return [job for kind in kinds for job in jobs.get(kind, [])]


def remove(deployment: Deployment) -> None:
    """Remove the folder of a deployment that has ended: its secrets, its logs and its state."""
    shutil.rmtree(deployment.folder)
