"""Slurm's commands: each call has a deadline, and an error names the command and what it said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from shared.core.errors import DeadlineExceeded, NotFound
from strata.slurm.queue import TABLE, Job, SlurmAnswer, of_json, of_table

CALL_S = 60.0
"""Longest wait for a command: a busy controller takes its time, and what waits has other things to do."""
LARGEST_JSON = 8 * 2**20
"""Bytes of an answer in JSON above which the table is asked for: some releases print the jobs of all users."""
_NEEDED = ("sbatch", "squeue", "scancel", "scontrol")
_SAID = 500


class SlurmMissing(NotFound):
    """Slurm's commands are not on the path (404)."""

    code = "slurm_missing"


class Slurm:
    """The Slurm that the commands on the path belong to.

    Args:
        bin_dir: a folder with the commands, beside those of the path.
        call_s: longest wait for a command.
    """

    def __init__(self, bin_dir: str = "", call_s: float = CALL_S) -> None:
        self._path = os.pathsep.join(filter(None, (os.environ.get("PATH", os.defpath), bin_dir)))
        self._call_s, self._json = call_s, True

    def check(self) -> str:
        """Check that the commands are there; returns their folder.

        Raises:
            SlurmMissing: names those that are not.
        """
        found = {name: shutil.which(name, path=self._path) for name in _NEEDED}
        missing = [name for name, at in found.items() if at is None]
        if missing:
            where = "run this where jobs are submitted, on a login node"
            raise SlurmMissing(f"no {', '.join(missing)} on the path: {where}")
        return str(Path(str(found["sbatch"])).parent)

    def submit(self, script: Path, *options: str, wait_s: float | None = None) -> str:
        """Submit a job and return its number.

        Args:
            script: of the job.
            options: before it.
            wait_s: wait so long until the job has ended, and raise if it failed.

        Raises:
            SlurmAnswer: it was refused; the message says why.
            DeadlineExceeded: no answer came in time, or the job has not ended.
        """
        waiting = ("--wait",) if wait_s is not None else ()
        said = self._call("sbatch", "--parsable", *waiting, *options, str(script), limit_s=wait_s)
        found = re.match(r"\s*(\d+)(;\S+)?\s*$", said)
        if found is None:
            raise SlurmAnswer(f"sbatch printed something else than the number of a job: {said[:80]!r}")
        return found[1]

    def jobs(self, names: Collection[str]) -> list[Job]:
        """This user's jobs of these names that have not ended.

        Raises:
            SlurmAnswer: the queue cannot be read.
            DeadlineExceeded: no answer came in time.
        """
        mine = ("--user", str(os.getuid()), "--name", ",".join(sorted(names)))
        if self._json:
            try:
                text = self._call("squeue", "--json", *mine)
                self._json = len(text) <= LARGEST_JSON
                return of_json(text, names)
            except SlurmAnswer:  # a release without the plug-in, or with a form of its own
                self._json = False
        return of_table(self._call("squeue", "--noheader", "--array", "--format", TABLE, *mine), names)

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs; those that have ended already are passed over.

        Raises:
            SlurmAnswer: Slurm refused; the message says why.
        """
        if jobs:
            self._call("scancel", "--quiet", *jobs)

    def requeue(self, job: str) -> None:
        """End a job and have it begin anew, under its number, once it is its turn.

        Raises:
            SlurmAnswer: Slurm refused; the message says why.
        """
        self._call("scontrol", "requeue", job)

    def hasten(self, job: str) -> None:
        """Have a job that was put back into the queue begin as soon as it is its turn, not after Slurm's two minutes.

        Raises:
            SlurmAnswer: Slurm refused; the message says why.
        """
        self._call("scontrol", "update", f"JobId={job}", "StartTime=now")

    def node_address(self, node: str) -> str | None:
        """The address, or name, under which Slurm reaches a node; None if it does not say."""
        found = re.search(r"\bNodeAddr=(\S+)", self._call("scontrol", "show", "node", node))
        return found[1] if found else None

    def _call(self, *words: str, limit_s: float | None = None) -> str:
        """What a command prints.

        Raises:
            SlurmMissing: there is no such command.
            SlurmAnswer: it failed; the message quotes the end of what it said.
            DeadlineExceeded: it did not end in time.
        """
        limit_s = self._call_s if limit_s is None else limit_s
        at = shutil.which(words[0], path=self._path)
        if at is None:
            raise SlurmMissing(f"no {words[0]} on the path")
        env = {**os.environ, "SLURM_BITSTR_LEN": "0"}  # tasks of an array that wait are named in full
        try:
            done = subprocess.run(  # noqa: S603 - Slurm's own command, no shell
                [at, *words[1:]], capture_output=True, text=True, errors="replace", timeout=limit_s, env=env,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"{words[0]} did not end within {limit_s:g} s") from None
        if done.returncode:
            said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-_SAID:]
            raise SlurmAnswer(f"{words[0]} failed (exit status {done.returncode}): {said or 'it said nothing'}")
        return done.stdout
