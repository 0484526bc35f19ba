"""The check of a compute node before the other jobs are submitted: Python, plug-ins, data, address, shared disk.

    python -m strata.slurm.check_job FOLDER

It writes what it found into the folder; `check_node` submits it and reads that.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from pydantic import Field

from shared.core.errors import BadInput, Conflict, DeadlineExceeded, StrataError
from shared.core.files import write_file
from shared.core.plugins import digests
from shared.core.records import Record
from shared.core.user_code import user_code
from shared.core.versions import differing, versions
from shared.spec.run import RunSpec
from strata.launcher.gpus import shared_gpus
from strata.launcher.redis_binary import find_redis_server
from strata.slurm.commands import Slurm, SlurmMissing
from strata.slurm.deployment import Deployment
from strata.slurm.host import own_address, say, told
from strata.slurm.options import CHECK
from strata.slurm.queue import SlurmAnswer

_REPORT, _ASKED = "check.json", "check-asked.json"
_LARGEST = 2**20


class Asked(Record):
    """What is to be checked.

    Attributes:
        drawn: by which the report of this check is recognised.
        spec: of the run, whose data are to be there.
    """

    drawn: str = ""
    spec: RunSpec | None = None


class Report(Record):
    """What was found on a compute node.

    Attributes:
        drawn: what the check was told, by which an older report is recognised.
        node: its name.
        address: under which other nodes reach it.
        versions: of Python, StrataFL and the packages that compute.
        plugins: digests of the user's packages.
        scales: whether jobs may be submitted there, without which the numbers of devices and edges stay.
        problem: why tiers cannot run there; empty if they can.
    """

    drawn: str
    node: str
    address: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    plugins: dict[str, str] = Field(default_factory=dict)
    scales: bool = False
    problem: str = ""


def check_node(deployment: Deployment, slurm: Slurm, spec: RunSpec | None, wait_s: float) -> Report:
    """Run the check as a job with what agents ask for, and return what it found.

    Args:
        deployment: whose tiers are to run there.
        slurm: Slurm's commands.
        spec: of the run, whose data are checked too.
        wait_s: longest wait until the job has ended, the time in the queue included.

    Raises:
        Conflict: the node cannot run the tiers as this machine would; the message says why.
        DeadlineExceeded: the job has not ended in time, and was cancelled.
    """
    folder, drawn = deployment.folder, secrets.token_hex(8)
    (folder / _REPORT).unlink(missing_ok=True)
    write_file(folder / _ASKED, Asked(drawn=drawn, spec=spec).model_dump_json().encode(), mode=0o600, durable=True)
    name, why = deployment.job_name(CHECK), ""
    try:
        slurm.submit(folder / "jobs" / f"{CHECK}.sh", wait_s=wait_s)
    except SlurmAnswer as error:
        why = error.detail
    except (DeadlineExceeded, KeyboardInterrupt) as error:
        left = slurm.jobs([name])
        slurm.cancel([job.id for job in left])
        if isinstance(error, KeyboardInterrupt):
            raise
        waiting = "; ".join(f"{job.state} ({job.reason})" for job in left)
        raise DeadlineExceeded(f"the check of a compute node has not ended within {wait_s:g} s: {waiting}") from None
    try:
        found = Report.model_validate_json((folder / _REPORT).read_bytes()[:_LARGEST])
    except (OSError, ValueError):
        logs = f"{folder / 'logs'}/{CHECK}-*.out"
        raise Conflict(
            f"the check of a compute node left no answer in {folder}, which must be on a disk that the nodes share; "
            f"{logs} may say why{why and f' ({why})'}"
        ) from None
    if found.drawn != drawn:
        raise Conflict(f"{folder / _REPORT} is of another check")
    _compare(found)
    return found


def _compare(found: Report) -> None:
    """Check that a node computes what this machine would.

    Raises:
        Conflict: it does not.
    """
    if found.problem:
        raise Conflict(f"compute node {found.node}: {found.problem}")
    for what, there, here in (("", found.versions, versions()), ("plug-in ", found.plugins, digests())):
        for name, (theirs, ours) in differing(there, here).items():
            raise Conflict(f"compute node {found.node} has {what}{name} {theirs[:20]}, this machine {ours[:20]}")


def report(deployment: Deployment) -> Report:
    """What is found on this node."""
    os.environ.update(deployment.note.env)
    slurm, options = Slurm(deployment.note.slurm_bin), deployment.options
    asked = Asked.model_validate_json((deployment.folder / _ASKED).read_bytes())
    found = Report(drawn=asked.drawn, node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename)
    try:
        slurm.check()
        found = found.replace(scales=True)
    except SlurmMissing:
        pass
    try:
        found = found.replace(versions=versions(), plugins=digests(), address=own_address(options.network, slurm))
        find_redis_server()
        shared_gpus(os.environ, options.agents_per_gpu)
        _check_data(asked.spec)
    except (StrataError, OSError) as error:
        problem = error.detail if isinstance(error, StrataError) else str(error)
        return found.replace(problem=problem or type(error).__name__)
    return found


def _check_data(spec: RunSpec | None) -> None:
    """Check that the data are there: those of the spec that is to run, or the folder of data sets.

    Raises:
        StrataError: they are not, or do not fit the spec.
    """
    from shared.service.settings import CommonSettings

    folder = CommonSettings().data_dir
    if folder is not None and not folder.is_dir():
        raise BadInput(f"STRATA_DATA_DIR: {folder} is not there", field="STRATA_DATA_DIR")
    if spec is not None:
        from strata.runs.spec_check import checked

        with user_code("the check of the spec"):
            checked(spec)


def main() -> None:
    """Check this node for the deployment whose folder is the argument."""
    with told():
        deployment = Deployment.open(Path(sys.argv[1]))
        found = report(deployment)
        write_file(deployment.folder / _REPORT, found.model_dump_json(indent=1).encode(), mode=0o600, durable=True)
        say(found.model_dump_json())


if __name__ == "__main__":
    main()
