"""Every key of the project in Redis: who owns it, what it holds, when it goes.

A key is owned by the tier that its prefix names; no other tier reads or writes it, also where one Redis
serves several tiers. Ids are percent-encoded: no colon or wildcard in an id reaches another key. Whatever
belongs to a run lies under one of the prefixes of `all_of_run` or `all_of_run_at_edge`, and goes with it.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote

from shared.storage.states import Version


def _part(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def last_part(key: str) -> str:
    """Return the id at the end of a key that was found by `scan` or `keys`."""
    return unquote(key.rpartition(":")[2], errors="surrogatepass")


# --- cloud: runs


def cloud_run(run_id: str) -> str:
    """The run's document. Owner: cloud. JSON: spec, status, reason, counts. Goes with the run."""
    return f"cloud:run:{_part(run_id)}:document"


def cloud_run_state(run_id: str) -> str:
    """What the last committed round left. Owner: cloud. JSON: round number, digest of the state record.

    Guard of every commit of a round (compare and set); refers to the blob of that digest. Goes with the run.
    """
    return f"cloud:run:{_part(run_id)}:state"


def cloud_rounds(run_id: str) -> str:
    """The round log. Owner: cloud. Stream, one entry (JSON) for each committed round. Goes with the run."""
    return f"cloud:run:{_part(run_id)}:rounds"


def cloud_events(run_id: str) -> str:
    """What the SSE endpoint tells. Owner: cloud. Stream of JSON, ids = `Last-Event-ID`. Goes with the run."""
    return f"cloud:run:{_part(run_id)}:events"


def cloud_seating(run_id: str) -> str:
    """Which agent sits on which seat. Owner: cloud. JSON, or a blob's digest. Goes with the run."""
    return f"cloud:run:{_part(run_id)}:seating"


def cloud_evaluation(run_id: str, round_no: int) -> str:
    """A round's evaluation, computed beside the next round. Owner: cloud. JSON figures. Goes with the run."""
    return f"{cloud_evaluations(run_id)}{round_no:08d}"


def cloud_evaluations(run_id: str) -> str:
    """Prefix of a run's evaluations; sorted keys are sorted rounds."""
    return f"cloud:run:{_part(run_id)}:evaluation:"


def cloud_due(run_id: str, round_no: int) -> str:
    """A committed state that waits for its evaluation. Owner: cloud. JSON: digest, how. Goes when it is evaluated."""
    return f"{cloud_dues(run_id)}{round_no:08d}"


def cloud_dues(run_id: str) -> str:
    """Prefix of a run's states that wait for their evaluation; sorted keys are sorted rounds."""
    return f"cloud:run:{_part(run_id)}:due:"


CLOUD_RUNS = "cloud:run-index:"
"""Prefix of the index of runs, without their documents."""


def cloud_runs(run_id: str) -> str:
    """An entry of the index of runs. Owner: cloud. JSON: what a list shows. Goes with the run."""
    return f"{CLOUD_RUNS}{_part(run_id)}:entry"


def run_of_index(key: str) -> str:
    """Return the run id in a key of `cloud_runs`."""
    return unquote(key.split(":")[2], errors="surrogatepass")


def cloud_idempotency(idempotency_key: str) -> str:
    """The answer to a POST /runs. Owner: cloud. JSON: run id, digest of the body. Expiry: 24 h.

    The caller's key is hashed: it may be of any length. May outlive a deleted run, until it expires.
    """
    return f"cloud:idempotency:{hashlib.sha256(idempotency_key.encode(errors='surrogatepass')).hexdigest()}"


IDEMPOTENCY_TTL_S = 24 * 3600.0
CLOUD_DELETED = "cloud:deleted:"


def cloud_deleted(run_id: str) -> str:
    """That a run was deleted, which other tiers are told with heartbeats. Owner: cloud. Expiry: 1 h.

    Who was away for longer registers anew, and learns then which runs there are.
    """
    return f"{CLOUD_DELETED}{_part(run_id)}"


DELETED_TTL_S = 3600.0


# --- cloud: registry


CLOUD_EDGES = "cloud:edge:"
CLOUD_EDGES_ALIVE = "cloud:edge-alive:"
CLOUD_AGENTS = "cloud:agent:"
CLOUD_AGENTS_ALIVE = "cloud:agent-alive:"


def cloud_edge(edge_id: str) -> str:
    """What an edge said of itself. Owner: cloud. JSON: address, profile. Stays until forgotten."""
    return f"{CLOUD_EDGES}{_part(edge_id)}"


def cloud_edge_alive(edge_id: str) -> str:
    """Sign of life of an edge. Owner: cloud. JSON: its last heartbeat. Expiry: the heartbeat's TTL."""
    return f"{CLOUD_EDGES_ALIVE}{_part(edge_id)}"


def cloud_agent(agent_id: str) -> str:
    """What an agent said of itself. Owner: cloud. JSON: address, room, profile. Stays until forgotten."""
    return f"{CLOUD_AGENTS}{_part(agent_id)}"


def cloud_agent_alive(agent_id: str) -> str:
    """Sign of life of an agent, as its edges told. Owner: cloud. JSON. Expiry: the heartbeat's TTL."""
    return f"{CLOUD_AGENTS_ALIVE}{_part(agent_id)}"


def cloud_topology() -> str:
    """The wanted topology, for the fleet. Owner: cloud. JSON: devices by service. Stays."""
    return "cloud:topology"


# --- edge


def edge_runs(edge_id: str) -> str:
    """Prefix of whatever an edge keeps of runs."""
    return f"edge:{_part(edge_id)}:run:"


def run_at_edge(edge_id: str, key: str) -> str:
    """Return the run id in a key under `edge_runs`."""
    return unquote(key.removeprefix(edge_runs(edge_id)).partition(":")[0], errors="surrogatepass")


def edge_states(edge_id: str, run_id: str, home: int) -> str:
    """Prefix of a home's states in a run; sorted keys are sorted versions."""
    return f"{_edge_run(edge_id, run_id)}state:{home}:"


def edge_state(edge_id: str, run_id: str, home: int, version: Version) -> str:
    """The state of a home after a round. Owner: edge. Digest of the state record (blob).

    Dropped when a later round begins from a newer one; else with the run.
    """
    return f"{edge_states(edge_id, run_id, home)}{version.text}"


def edge_twins(edge_id: str, run_id: str, home: int, version: Version) -> str:
    """The twins of a home's workers after a round. Owner: edge. JSON: by seat. Dropped like that state."""
    return f"{edge_twins_of(edge_id, run_id, home)}{version.text}"


def edge_twins_of(edge_id: str, run_id: str, home: int) -> str:
    """Prefix of a home's twins in a run; sorted keys are sorted versions."""
    return f"{edge_all_twins(edge_id, run_id)}{home}:"


def edge_all_twins(edge_id: str, run_id: str) -> str:
    """Prefix of the twins of a run at an edge."""
    return f"{_edge_run(edge_id, run_id)}twins:"


def edge_seating(edge_id: str, run_id: str, digest: str) -> str:
    """A seating that rounds refer to by digest. Owner: edge. JSON. Goes when another comes, or the run."""
    return f"{edge_seatings(edge_id, run_id)}{_part(digest)}"


def edge_seatings(edge_id: str, run_id: str) -> str:
    """Prefix of the seatings of a run that an edge knows."""
    return f"{_edge_run(edge_id, run_id)}seating:"


def _edge_run(edge_id: str, run_id: str) -> str:
    return f"{edge_runs(edge_id)}{_part(run_id)}:"


# --- deleting a run


def all_of_run(run_id: str) -> tuple[str, ...]:
    """Return the prefixes of whatever the cloud keeps of a run, for `Store.delete_prefix`."""
    return (f"{CLOUD_RUNS}{_part(run_id)}:", f"cloud:run:{_part(run_id)}:")


def all_of_run_at_edge(edge_id: str, run_id: str) -> tuple[str, ...]:
    """Return the prefixes of whatever an edge keeps of a run, for `Store.delete_prefix`."""
    return (_edge_run(edge_id, run_id),)
