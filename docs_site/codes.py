"""The reference of codes as Markdown: outcomes and reasons of visits, errors, events of runs, states."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import cloud_server.app  # defines errors of its own, as the next ones do
import strata.fleet.containers
import strata.fleet.scale_api
import strata.launcher.topology  # noqa: F401
from docs_site.markdown import line, table
from shared.core.errors import StrataError
from shared.run_records.runs import Status
from shared.service.api.nodes import State
from shared.service.metrics import OTHER, OUTCOMES, REASONS

CODES = "codes.md"
_CLOUD = Path(cloud_server.app.__file__).parent
VISITS = {
    "used": "its update is in the round's mean",
    "used_late": "its update, late in an earlier round, is in this round's mean with less weight",
    "refused": "it was made and charged, but its update is not used: `late`, `surplus`, or as the algorithm decides",
    "failed": "it was lost; the reason is one of the codes below",
    "evaluated": "it tested a model and trained nothing",
    "collected": "it computed something other than an update, as the first phase of FedMix",
    "idle": "it was answered without an update",
}
"""Outcomes of visits."""
EDGES = {
    "used": "its devices' updates are in the round's mean",
    "idle": "no device of it sent an update",
    "failed": "it was lost, with the contributions of its devices",
    "away": "it is lost: its devices work for other edges, or wait for it",
}
"""Outcomes of edges in a round."""
LOST = {
    "timeout": "the agent did not compute the task within `timeouts.visit_s`",
    "offline": "the agent was taken offline",
    "left_out": "the spec's `losses` leave it out",
    "unavailable": "the modelled device was off (`availability`)",
    "busy": "the device is still at work on a late update, or the process has too many connections",
    "dropped": "the modelled device gave it up (`drop_rate`)",
    "late": "the answer came after the deadline",
    "error": "an unforeseen error; the detail names it, the log has the traceback",
    "remote": "another program answered, with the status that the detail names",
}
"""Reasons of lost contributions that are no codes of errors, or mean more than the error."""
EVENTS = {
    "run.status": "its status changed, or the reason of it",
    "run.note": "something to know about it, such as a model that it begins with",
    "run.changed": "it went on with other data, code or packages (`--accept-changes`)",
    "round.started": "a round, or another attempt at it, began",
    "round.committed": "the new state is stored; sums of the round",
    "round.evaluated": "scores of the model",
    "round.retried": "the quorum was missed, and the round begins again",
    "state.lost": "an edge has lost its state between rounds, such as late updates and digital twins, and begins anew",
    "store.changed": "Redis was restarted, was replaced by a replica, or has removed keys; says which",
    "node.clock": "the clock of a node is wrong, by so much",
    "node.refused": "a node could not register; the reason says why, such as another process of its name",
    "contribution.lost": "a device's or an edge's contribution is missing, with its reason",
    "seat.profile": "its agent got another profile",
    "seat.moved": "another agent hosts it",
    "seat.taken": "a new device took it",
    "seat.left": "its device left for good",
    "seat.retired": "the algorithm takes it out of the run",
    "home.moved": "another edge process serves the edge's place",
    "tracking.failed": "a tracker could not be reached",
    "tracking.resumed": "a tracker is reached again",
    "node.": "a node's state changed; the rest of the name is the state",
}
"""Kinds of events."""
STATES = {
    "alive": "heard within half the TTL",
    "suspect": "silent for more than half the TTL",
    "lost": "silent for more than the TTL",
    "revived": "heard again after a loss, within the last TTL",
    "left_out": "alive, but in no run: its versions or its protocol are not the cloud's",
    "offline": "alive, but taken offline by a user",
    "leaving": "about to be stopped by the fleet",
    "left": "stopped by the fleet; other agents take its devices",
}
"""States of nodes."""
STATUSES = {
    "pending": "it waits in the queue",
    "starting": "it waits for edges and devices, and prepares",
    "running": "it trains",
    "pausing": "it pauses after this round",
    "paused": "it can be resumed",
    "stopping": "it stops after this round",
    "completed": "all rounds are trained, or a condition of `stop` holds",
    "failed": "it cannot go on; the reason says why",
    "stopped": "a user stopped it",
}
"""Statuses of runs."""
_INTRODUCTION = """This page lists the codes that records, the API, logs and metrics use, with their meanings; it is
generated from the code."""


def codes_page() -> str:
    """Returns the page.

    Raises:
        ValueError: the code has a name that this file does not explain, or the other way round.
    """
    errors = dict(error_codes())
    reasons = {name: LOST.get(name) or errors[name][1] for name in REASONS if name != OTHER}
    reasons[OTHER] = "any reason that metrics do not tell apart, such as one of a later version"
    parts = ["# Codes", _INTRODUCTION]
    parts += ["## Outcomes of tasks", _explained("outcome", VISITS, (name for name in OUTCOMES if name != OTHER))]
    parts += ["## Outcomes of edges", _explained("outcome", EDGES, EDGES)]
    parts += ["## Reasons of lost contributions", _REASONS, _explained("reason", reasons, REASONS)]
    parts += ["## Events of a run", _explained("event", EVENTS, event_kinds())]
    parts += ["## Statuses of a run", _explained("status", STATUSES, get_args(Status))]
    parts += ["## States of a node", _explained("state", STATES, get_args(State))]
    rows = ((f"`{code}`", f"{status}", meaning) for code, (status, meaning) in sorted(errors.items()))
    parts += ["## Errors", _ERRORS, table(("code", "status", "when"), rows)]
    return "\n\n".join(parts) + "\n"


_REASONS = """`unavailable`, `busy`, `dropped` and `left_out` follow from the spec: another run of it loses the
same, and they do not count in the [quorum](reliability.md). The others are faults."""
_ERRORS = """The `code` of a [Problem](rest-schemas.md#problem), and the HTTP status with which a tier answers."""


def event_kinds() -> list[str]:
    """Returns the kinds of all events that the cloud's code makes; of one with a state in its name the words before."""
    kinds: set[str] = set()
    for path in _CLOUD.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RunEvent" and node.args:
                first = node.args[0]
                first = first.values[0] if isinstance(first, ast.JoinedStr) else first
                kinds |= {str(first.value)} if isinstance(first, ast.Constant) else set()
    return sorted(kinds)


def error_codes() -> Iterator[tuple[str, tuple[int, str]]]:
    """Returns the status and the meaning of each code of an error."""
    kinds = [StrataError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in reversed(kinds):  # the class that has a code first explains it
        if "code" in vars(kind):
            yield kind.code, (kind.status, _first_paragraph(kind))


def _first_paragraph(kind: type[StrataError]) -> str:
    if kind is StrataError:
        return "An unforeseen error; the log has its traceback."
    return re.sub(r" \(\d{3}\)", "", line((inspect.getdoc(kind) or "").partition("\n\n")[0]))


def _explained(title: str, meanings: dict[str, str], known: Iterable[str]) -> str:
    names = list(known)
    if set(names) != set(meanings):
        raise ValueError(f"{title}: {sorted(set(names) ^ set(meanings))} are in the code or explained, but not both")
    return table((title, "meaning"), ((f"`{name}`", meanings[name]) for name in names))
