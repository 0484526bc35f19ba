"""The queue of Slurm, as `squeue` prints it: in JSON or, where it cannot, as a table."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from shared.core.errors import StrataError

TABLE = "%F|%K|%A|%j|%T|%N|%r"
"""The format of the table: number of the array, index in it, number, name, state, node, reason."""
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
    | {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
"""States of jobs that have ended."""
MOST_TASKS = 100_000
"""Most tasks of an array that are read: what the largest clusters allow is below that."""


class SlurmAnswer(StrataError):
    """Slurm did not answer, refused, or printed something else than expected (502)."""

    status, code = 502, "slurm"


@dataclass(frozen=True)
class Job:
    """A job that has not ended: one task of an array, or the core.

    Attributes:
        id: by which it is cancelled, such as `17_3`.
        name: as its script says.
        index: in its array; 0 if it is in none.
        state: such as `PENDING`, `RUNNING` or `COMPLETING`.
        node: where it runs; empty while it waits.
        reason: why it waits.
    """

    id: str
    name: str
    index: int
    state: str
    node: str = ""
    reason: str = ""

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn."""
        return self.state == "PENDING"

    @property
    def is_delayed(self) -> bool:
        """Whether it waits only since Slurm has put it back into the queue, and lets two minutes pass."""
        return self.waits and self.reason == "BeginTime"


def of_json(text: str, names: Collection[str]) -> list[Job]:
    """The jobs with one of these names in what `squeue --json` printed.

    Raises:
        SlurmAnswer: it is something else.
    """
    try:
        rows = json.loads(text)["jobs"]
        return [job for row in rows if row.get("name") in names for job in _jobs_of(row)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlurmAnswer(
            f"squeue --json printed something else than jobs ({type(error).__name__}: {error}): {_start(text)}"
        ) from None


def _jobs_of(row: dict[str, Any]) -> Iterator[Job]:
    """The jobs of a row: several where tasks of an array wait together."""
    states = row["job_state"]
    words = [states] if isinstance(states, str) else [str(each) for each in states]
    state = "COMPLETING" if "COMPLETING" in words else words[0]
    if state in ENDED:
        return
    number, array, index = _number(row["job_id"]), _number(row.get("array_job_id")), _number(row.get("array_task_id"))
    node, reason = str(row.get("nodes") or ""), str(row.get("state_reason") or "")
    waiting = str(row.get("array_task_string") or "")
    if index is None and waiting:
        for each in indices(waiting):
            yield Job(f"{array}_{each}", str(row["name"]), each, state, node, reason)
    elif index is None or not array:
        yield Job(str(number), str(row["name"]), 0, state, node, reason)
    else:
        yield Job(f"{array}_{index}", str(row["name"]), index, state, node, reason)


def _number(value: object) -> int | None:
    """A number, which newer releases wrap: `{"set": true, "infinite": false, "number": 3}`."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") else None
    return None if value is None else int(str(value))


def indices(text: str) -> list[int]:
    """The indices of `1-3,7,10-20:5%2`, where `%` begins the number of tasks that run at a time.

    Raises:
        ValueError: the text is none, or is cut off.
    """
    found: list[int] = []
    for part in text.partition("%")[0].strip("[]").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is no range of tasks")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        found += range(first, min(last, first + MOST_TASKS) + 1, max(step, 1))
    return found


def of_table(text: str, names: Collection[str]) -> list[Job]:
    """The jobs with one of these names in a table of the format `TABLE`, in which each task has a row.

    Raises:
        SlurmAnswer: it is something else.
    """
    found = []
    for row in text.splitlines():
        parts = row.split("|", 6)
        if len(parts) != 7:
            raise SlurmAnswer(f"squeue printed something else than a table of jobs: {_start(row)}")
        array, index, number, name, state, node, reason = (part.strip() for part in parts)
        if name not in names or state in ENDED:
            continue
        single = not index.isdecimal()
        found.append(
            Job(number if single else f"{array}_{index}", name, 0 if single else int(index), state, node, reason)
        )
    return found


def _start(text: str) -> str:
    """The first characters, for a message."""
    return repr(text[:80])
