"""A deployment: the folder on the shared disk by which its jobs find each other, and in which their state is.

deployment.json   what was asked for, and with which Python and settings; nothing secret
secrets/          the tokens of tiers and users, and Redis' password: files that their owner alone reads
cloud.json        where the cloud and Redis listen, written anew whenever they start
jobs/, logs/      the scripts of the jobs, and what they and the tiers print
handing_over/     jobs that reach their time limit, or are back; `paused.json` names the runs that wait for them
begun             there once the cloud knows how many devices and edges it begins with
ended             there once the deployment is being stopped: nothing is started any more
redis/, cloud/, edge-1/, agent-1/, ...   state
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, ValidationError

from shared.core.errors import BadInput, Conflict, NotFound
from shared.core.field_errors import told
from shared.core.files import write_file
from shared.core.records import Record
from shared.service.token_files import token_of
from strata.launcher import home
from strata.slurm.options import Options

TIER_TOKEN, API_TOKEN, REDIS_PASSWORD = "tier-token", "api-token", "redis-password"
SECRETS = (TIER_TOKEN, API_TOKEN, REDIS_PASSWORD)
FORWARDED = ("STRATA_", "CLOUD_", "EDGE_", "AGENT_", "FLEET_")
"""Beginnings of the settings that tiers in jobs have from the environment of the user."""
_SECRET_WORDS = ("TOKEN", "PASSWORD", "SECRET", "REDIS_URL")
_OWN = ("_HOST", "_PORT", "_FD", "_NAME", "_STATE_DIR", "_CLOUD_URL", "STRATA_URL", "STRATA_HOME")
_OF_THIS_TIME = ("cloud.json", "begun", "ended")
_LARGEST_NOTE = 2**20
R = TypeVar("R", bound=Record)


class Note(Record):
    """What the jobs of a deployment know of it.

    Attributes:
        tag: drawn once; names of jobs contain it.
        python: the interpreter.
        python_path: the user's PYTHONPATH.
        runs_dir: the folder of results.
        work_dir: the folder in which jobs begin.
        slurm_bin: the folder of Slurm's commands.
        env: settings of the tiers.
    """

    tag: str
    options: Options
    python: str
    python_path: str = ""
    runs_dir: str
    work_dir: str
    slurm_bin: str = ""
    env: dict[str, str] = Field(default_factory=dict)


class Address(Record):
    """Where the core listens.

    Attributes:
        url: of the cloud.
        redis: of Redis, without a password.
        node: the node on which they run.
        job: the job.
    """

    url: str
    redis: str
    node: str
    job: str


class HandingOver(Record):
    """A job near its time limit, or one that is back.

    Attributes:
        state: `leaving` until the next job has begun, then `back`.
        since: Unix seconds.
    """

    state: Literal["leaving", "back"]
    since: float


class Deployment:
    """The folder of a deployment.

    Args:
        folder: on a disk that all nodes share.
    """

    def __init__(self, folder: Path, note: Note) -> None:
        self.folder, self.note = folder, note

    @property
    def options(self) -> Options:
        """What was asked for."""
        return self.note.options

    @classmethod
    def make(cls, folder: Path, note: Note) -> Self:
        """A deployment in a folder, which keeps its tag, its secrets and its state if it was one before.

        Raises:
            Conflict: the folder is another user's.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise Conflict(f"{folder} belongs to another user")
        folder.chmod(0o700)
        if (folder / "deployment.json").exists():
            note = note.replace(tag=cls.open(folder).note.tag)
        (folder / "secrets").mkdir(mode=0o700, exist_ok=True)
        for name in SECRETS:
            if not (folder / "secrets" / name).exists():
                write_file(folder / "secrets" / name, f"{secrets.token_hex(24)}\n".encode(), mode=0o600)
        for name in ("jobs", "logs", "handing_over"):
            (folder / name).mkdir(exist_ok=True)
        for stale in (*(folder / "handing_over").iterdir(), *(folder / name for name in _OF_THIS_TIME)):
            stale.unlink(missing_ok=True)
        made = cls(folder, note)
        made._write("deployment.json", note)
        return made

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The deployment of a folder.

        Raises:
            NotFound: there is none.
            BadInput: its note is damaged or of another version.
        """
        found = _read(folder / "deployment.json", Note)
        if found is None:
            raise NotFound(f"no deployment in {folder}: `strata slurm up` makes one")
        return cls(folder, found)

    # ---- its parts

    def job_name(self, kind: str) -> str:
        """The name of its jobs of a kind, by which they are found in the queue."""
        return f"strata-{self.options.name}-{self.note.tag}-{kind}"

    def secret_file(self, name: str) -> Path:
        """The file of one of its secrets."""
        return self.folder / "secrets" / name

    def secret(self, name: str) -> str:
        """One of its secrets.

        Raises:
            BadInput: its file cannot be read.
        """
        try:
            found = token_of(name, None, self.secret_file(name))
        except ValueError as error:
            raise BadInput(str(error)) from None
        assert found is not None  # noqa: S101 - a file was named
        return found

    def address(self) -> Address | None:
        """Where the core listens; None while it does not."""
        return _read(self.folder / "cloud.json", Address)

    def announce(self, address: Address) -> None:
        """Let the other jobs find the core."""
        self._write("cloud.json", address)

    def withdraw(self) -> None:
        """Have nobody look for the core where it was."""
        (self.folder / "cloud.json").unlink(missing_ok=True)

    @property
    def ended(self) -> bool:
        """Whether it is being stopped."""
        return (self.folder / "ended").exists()

    def end(self) -> None:
        """Have nothing of it started any more."""
        (self.folder / "ended").touch()

    @property
    def begun(self) -> bool:
        """Whether its cloud knows how many devices and edges it began with."""
        return (self.folder / "begun").exists()

    def begin(self) -> None:
        """Note that its cloud knows how many devices and edges it began with: what users ask for holds from then on."""
        (self.folder / "begun").touch()

    # ---- jobs that hand over

    def hand_over(self, task: str, state: Literal["leaving", "back"]) -> None:
        """Note that a task, such as `edges-3`, reaches its time limit, or that its next job has begun."""
        self._write(f"handing_over/{task}", HandingOver(state=state, since=time.time()))

    def handing_over(self, task: str) -> HandingOver | None:
        """What is noted of a task; None if nothing."""
        return _read(self.folder / "handing_over" / task, HandingOver)

    def all_handing_over(self) -> dict[str, HandingOver]:
        """What is noted, by task."""
        names = sorted(path.name for path in (self.folder / "handing_over").iterdir() if not path.name.startswith("."))
        return {name: found for name in names if (found := self.handing_over(name)) is not None}

    def handed_over(self, task: str) -> None:
        """Forget a task that is back."""
        (self.folder / "handing_over" / task).unlink(missing_ok=True)

    def paused(self) -> tuple[str, ...] | None:
        """The runs that were paused for jobs that hand over; None unless all are."""
        try:
            return tuple(map(str, json.loads((self.folder / "paused.json").read_bytes())))
        except (OSError, ValueError, TypeError):
            return None

    def note_paused(self, runs: tuple[str, ...] | None) -> None:
        """Note that these runs are paused; None = none is any more."""
        if runs is None:
            (self.folder / "paused.json").unlink(missing_ok=True)
        else:
            write_file(self.folder / "paused.json", json.dumps(runs).encode(), durable=True)

    def _write(self, name: str, record: Record) -> None:
        write_file(self.folder / name, record.model_dump_json(indent=1).encode(), mode=0o600, durable=True)


def _read(path: Path, kind: type[R]) -> R | None:
    """The record in a file; None if there is no file.

    Raises:
        BadInput: it is none.
    """
    try:
        with path.open("rb") as file:
            return kind.model_validate_json(file.read(_LARGEST_NOTE))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadInput(f"{path} is damaged or of another version: {told(error)}") from None


def folder_of(name: str) -> Path:
    """The folder of the deployment of a name: in `.strata`, which must be on a disk that the nodes share."""
    return (home.folder() / "slurm" / name).resolve()


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of an environment that tiers in jobs have too: none that is secret, or that a job has of its own."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(FORWARDED) and not any(word in name for word in _SECRET_WORDS) and not name.endswith(_OWN)
    }
