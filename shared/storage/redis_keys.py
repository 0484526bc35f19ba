"""Every key in Redis: its owner, its content and its expiry.

The tier that a key's prefix names owns it; no other tier reads or writes it, also if several tiers share one Redis. Ids
are percent-encoded, so that no colon or wildcard in an id reaches another key. All keys of a run begin with a prefix of
`all_of_run` or `all_of_run_at_edge` and are deleted with it.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote

from shared.storage.states import Version


def _part(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def last_part(key: str) -> str:
    """Returns the id at the end of a key, as `scan` and `keys` return it."""
    return unquote(key.rpartition(":")[2], errors="surrogatepass")


# --- users, where nodes show certificates


CLOUD = "cloud:"
"""Prefix of all keys of the cloud."""


def edge_prefix(edge_id: str) -> str:
    """Prefix of all keys of an edge."""
    return f"edge:{_part(edge_id)}:"


def user_of_edge(edge_id: str) -> str:
    """The user of Redis as whom an edge reaches its keys."""
    return f"edge:{_part(edge_id)}"


def edge_probe(edge_id: str) -> str:
    """Written and deleted again and again: does Redis take writes? Owner: edge. `1`. Expiry: the TTL."""
    return f"{edge_prefix(edge_id)}probe"


# --- cloud: ownership


CLOUD_OWNER = "cloud:owner"
"""The cloud process that owns all keys of the cloud. Owner: cloud. JSON of an `Owner`. Kept.

Every write of a cloud is guarded by its value.
"""
CLOUD_LEASE = "cloud:owner-lease"
"""While it exists, no other installation takes over. Owner: cloud. `1`. Expiry: the lease."""


# --- cloud: users


CLOUD_USERS = "cloud:user:"
"""Prefix of the users."""


def cloud_user(name: str) -> str:
    """A user beside the administrator. Owner: cloud. JSON: the sha256 of the token, limits. Deleted with the token."""
    return f"{CLOUD_USERS}{_part(name)}"


CLOUD_TURNS = "cloud:turns"
"""Whose turn it was in the queue of runs. Owner: cloud. JSON: by owner, the number of the last turn. Kept."""

# --- cloud: runs


def cloud_run(run_id: str) -> str:
    """The document of a run. Owner: cloud. JSON: spec, status, reason, counts. Deleted with the run."""
    return f"cloud:run:{_part(run_id)}:document"


def cloud_run_state(run_id: str) -> str:
    """The checkpoint of the last committed round. Owner: cloud. Digest of the state's blob. Deleted with the run.

    Every commit of a round is guarded by its value (compare and set).
    """
    return f"cloud:run:{_part(run_id)}:state"


def cloud_rounds(run_id: str) -> str:
    """The round log. Owner: cloud. Stream of JSON, one entry for each committed round. Deleted with the run."""
    return f"cloud:run:{_part(run_id)}:rounds"


def cloud_events(run_id: str) -> str:
    """The events of a run. Owner: cloud. Stream of JSON, whose ids are `Last-Event-ID`. Deleted with the run."""
    return f"cloud:run:{_part(run_id)}:events"


def cloud_placement(run_id: str) -> str:
    """The placement: which agent hosts which seat. Owner: cloud. JSON. Deleted with the run."""
    return f"cloud:run:{_part(run_id)}:seating"


def cloud_evaluation(run_id: str, round_no: int) -> str:
    """The evaluation of a round, computed beside the next round. Owner: cloud. JSON. Deleted with the run."""
    return f"{cloud_evaluations(run_id)}{round_no:08d}"


def cloud_evaluations(run_id: str) -> str:
    """Prefix of a run's evaluations; the order of the keys is that of the rounds."""
    return f"cloud:run:{_part(run_id)}:evaluation:"


def cloud_best(run_id: str) -> str:
    """The best round of a run. Owner: cloud. JSON: its value, the state's digest. Deleted with the run."""
    return f"cloud:run:{_part(run_id)}:best"


def cloud_due(run_id: str, round_no: int) -> str:
    """An evaluation that is due. Owner: cloud. JSON: the state's digest, how to evaluate. Deleted when it is done."""
    return f"{cloud_dues(run_id)}{round_no:08d}"


def cloud_dues(run_id: str) -> str:
    """Prefix of a run's due evaluations; the order of the keys is that of the rounds."""
    return f"cloud:run:{_part(run_id)}:due:"


CLOUD_RUNS = "cloud:run-index:"
"""Prefix of the index of runs."""


def cloud_runs(run_id: str) -> str:
    """The entry of a run in the index. Owner: cloud. Creation time (ISO 8601), blank, sequence. Deleted with it."""
    return f"{CLOUD_RUNS}{_part(run_id)}:entry"


def run_of_index(key: str) -> str:
    """Returns the run id in a key of `cloud_runs`."""
    return unquote(key.split(":")[2], errors="surrogatepass")


def cloud_idempotency(idempotency_key: str) -> str:
    """The answer to a POST /runs. Owner: cloud. JSON: run id, digest of the body. Expiry: 24 h.

    The caller's key is hashed, since it may be of any length. It may outlive the run.
    """
    return f"cloud:idempotency:{hashlib.sha256(idempotency_key.encode(errors='surrogatepass')).hexdigest()}"


IDEMPOTENCY_TTL_S = 24 * 3600.0
CLOUD_DELETED = "cloud:deleted:"
"""Prefix of the marks of deleted runs."""


def cloud_deleted(run_id: str) -> str:
    """The mark of a deleted run, sent to other tiers with heartbeats. Owner: cloud. `1`. Expiry: 1 h.

    A tier that was away for longer registers again, and is then sent the ids of all runs.
    """
    return f"{CLOUD_DELETED}{_part(run_id)}"


DELETED_TTL_S = 3600.0


# --- cloud: registry


CLOUD_EDGES = "cloud:edge:"
CLOUD_EDGES_ALIVE = "cloud:edge-alive:"
CLOUD_AGENTS = "cloud:agent:"
CLOUD_AGENTS_ALIVE = "cloud:agent-alive:"


def cloud_edge(edge_id: str) -> str:
    """The registration of an edge. Owner: cloud. JSON: id, URL. Expiry: 1 h after its last heartbeat."""
    return f"{CLOUD_EDGES}{_part(edge_id)}"


def cloud_edge_alive(edge_id: str) -> str:
    """The sign that an edge is alive. Owner: cloud. `1`. Expiry: the heartbeat's TTL."""
    return f"{CLOUD_EDGES_ALIVE}{_part(edge_id)}"


def cloud_agent(agent_id: str) -> str:
    """The registration of an agent. Owner: cloud. JSON of an `AgentEntry`. Expiry: 1 h after its last heartbeat."""
    return f"{CLOUD_AGENTS}{_part(agent_id)}"


def cloud_agent_alive(agent_id: str) -> str:
    """The last heartbeat of an agent, as its edges report it. Owner: cloud. JSON. Expiry: the heartbeat's TTL."""
    return f"{CLOUD_AGENTS_ALIVE}{_part(agent_id)}"


CLOUD_IDENTITIES = "cloud:identity:"
CLOUD_REVOKED = "cloud:revoked:"


def cloud_identity(uri: str) -> str:
    """The key and the certificates of a node. Owner: cloud. JSON of a `Binding`. Deleted when the node is revoked.

    Expiry: a day after its last certificate has ended.
    """
    return f"{CLOUD_IDENTITIES}{_part(uri)}"


def cloud_revoked(serial: str) -> str:
    """The mark of a revoked certificate, sent with heartbeats. Owner: cloud. Its end. Expiry: the same."""
    return f"{CLOUD_REVOKED}{_part(serial)}"


def cloud_topology() -> str:
    """The wanted size of the fleet. Owner: cloud. JSON: devices by service. Kept."""
    return "cloud:topology"


def cloud_wanted_edges() -> str:
    """The wanted number of edges of the fleet. Owner: cloud. A decimal number. Kept."""
    return "cloud:wanted-edges"


# --- edge


def edge_runs(edge_id: str) -> str:
    """Prefix of all keys of runs at an edge."""
    return f"{edge_prefix(edge_id)}run:"


def run_at_edge(edge_id: str, key: str) -> str:
    """Returns the run id in a key under `edge_runs`."""
    return unquote(key.removeprefix(edge_runs(edge_id)).partition(":")[0], errors="surrogatepass")


def edge_states(edge_id: str, run_id: str, edge: int) -> str:
    """Prefix of the states of an edge of a run; the order of the keys is that of the versions."""
    return f"{_edge_run(edge_id, run_id)}state:{edge}:"


def edge_state(edge_id: str, run_id: str, edge: int, version: Version) -> str:
    """The state of an edge of a run after a round. Owner: edge. Digest of the state's blob.

    Deleted when a round begins from a newer state, or with the run.
    """
    return f"{edge_states(edge_id, run_id, edge)}{version.text}"


def edge_twins(edge_id: str, run_id: str, edge: int, version: Version) -> str:
    """The digital twins of an edge's seats after a round. Owner: edge. JSON by seat. Deleted like `edge_state`."""
    return f"{edge_twins_of(edge_id, run_id, edge)}{version.text}"


def edge_twins_of(edge_id: str, run_id: str, edge: int) -> str:
    """Prefix of an edge's twins in a run; the order of the keys is that of the versions."""
    return f"{edge_all_twins(edge_id, run_id)}{edge}:"


def edge_all_twins(edge_id: str, run_id: str) -> str:
    """Prefix of all twins of a run at an edge's process."""
    return f"{_edge_run(edge_id, run_id)}twins:"


def edge_placement(edge_id: str, run_id: str, digest: str) -> str:
    """The placement that rounds name by digest. Owner: edge. JSON. Deleted when another arrives, or with the run."""
    return f"{edge_placements(edge_id, run_id)}{_part(digest)}"


def edge_placements(edge_id: str, run_id: str) -> str:
    """Prefix of the placements of a run at an edge."""
    return f"{_edge_run(edge_id, run_id)}seating:"


def _edge_run(edge_id: str, run_id: str) -> str:
    return f"{edge_runs(edge_id)}{_part(run_id)}:"


# --- deleting a run


def all_of_run(run_id: str) -> tuple[str, ...]:
    """Returns the prefixes of all keys of a run at the cloud, for `Store.delete_prefix`."""
    return (f"{CLOUD_RUNS}{_part(run_id)}:", f"cloud:run:{_part(run_id)}:")


def all_of_run_at_edge(edge_id: str, run_id: str) -> tuple[str, ...]:
    """Returns the prefixes of all keys of a run at an edge, for `Store.delete_prefix`."""
    return (_edge_run(edge_id, run_id),)
