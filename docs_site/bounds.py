"""The reference of bounds as Markdown: sizes, numbers and times beyond which something is refused, from the code."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from cloud_server.settings import CloudSettings
from docs_site.markdown import table
from docs_site.settings import rows

BOUNDS = "bounds.md"
_INTRODUCTION = """This page lists the sizes, numbers and times beyond which something is refused or ends; it is
generated from the code. [Security](security.md) says whom they hold off."""
_SETTINGS = """The first eight are settings of every tier, each with its own prefix: `CLOUD_`, `EDGE_` or `AGENT_`. In
Compose and Swarm a setting is added to the `environment` of its service."""
_COST = """No setting harms an honest sender: a tier that gets 408 or 503 `busy` from another sends its request again
until its own deadline. They cost 0.4 microseconds for each chunk of a body, and 4 for each request."""
SETTINGS = (
    *("HEAD_S", "BODY_S", "BODY_RATE", "UNREAD_S", "MAX_CONNECTIONS", "MAX_BODY_BYTES"),
    *("ALLOWED_NETWORKS", "ALLOWED_HOSTS"),
    *("MAX_SPEC_BYTES", "MAX_EVENT_CLIENTS", "MAX_RUNS", "MAX_CONCURRENT_RUNS", "LEASE_S"),
    *("USER_MAX_RUNS", "USER_MAX_BYTES", "KEEP_DAYS", "KEEP_BYTES"),
)
"""Settings of the cloud that bound something."""
CONSTANTS = {
    "shared.core.bounds": (
        ("devices of a run, of a topology, of one agent", "LARGEST_DEVICES", "", "422; the agent does not start"),
        ("edges of a run", "LARGEST_EDGES", "", "422"),
        ("the cause of a failure, as a text", "DETAIL_CHARS", "characters", "it is cut"),
        ("the reason for which a run waits, pauses or fails", "RUN_REASON_CHARS", "characters", "it is cut"),
    ),
    "shared.spec.fields": (("rounds of a run", "LARGEST_COUNT", "", "422"),),
    "shared.core.parsing": (("a spec in YAML", "MAX_CHARS", "characters", "it is refused"),),
    "shared.wire.json_encoding": (("depth of a record's JSON", "MAX_DEPTH", "", "400"),),
    "shared.service.api.membership": (
        ("agents, and edges, that the cloud registers; agents that an edge hears", "MAX_AGENTS", "", "429"),
    ),
    "cloud_server.nodes.stored_nodes": (("time for which a silent node is known", "KEEP_S", "s", "it is forgotten"),),
    "cloud_server.nodes.call_back": (
        ("time for the answer to the call-back of a registration", "CALL_BACK_S", "s", "403"),
    ),
    "cloud_server.users.tokens": (("users of a cloud", "MAX_USERS", "", "429"),),
    "cloud_server.nodes.identities": (("nodes of a class that have certificates", "MAX_NAMES", "", "429"),),
    "shared.identity.revocations": (
        ("revoked certificates that nodes are told of", "MAX_REVOKED", "", "the cloud alone refuses the oldest"),
    ),
    "shared.service.http_protocol": (
        ("the head of a request", "HEAD_BYTES", "bytes", "431"),
        ("time for which a connection is idle", "KEEP_ALIVE_S", "s", "it is closed"),
    ),
    "shared.service.reverse.desk": (
        (
            "time for which a poll of a node that dials out waits",
            "WAIT_S",
            "s",
            "it is answered, and the node polls again",
        ),
        ("time without a poll after one was answered", "GONE_S", "s", "the node's requests fail, and are repeated"),
        ("time without a poll after a connection broke", "CLOSED_S", "s", "the same"),
    ),
    "shared.service.reverse.records": (
        ("requests that a node which dials out has from one tier", "MAX_HELD", "", "further ones wait"),
        ("requests that one poll takes", "MAX_TAKEN", "", "the next poll takes more"),
    ),
    "shared.service.body_limit": (("a body of JSON between tiers", "JSON_BYTES", "bytes", "413"),),
    "shared.service.server": (("a message of a websocket", "WS_BYTES", "bytes", "its connection is closed"),),
    "cloud_server.dashboard.login": (
        ("the body of the login form", "MAX_FORM_BYTES", "bytes", "400"),
        ("sessions of the dashboard", "MAX_SESSIONS", "", "the one least recently used ends"),
        ("time for which a session is idle", "IDLE_LIMIT_S", "s", "it ends"),
    ),
    "cloud_server.api.runs": (
        ("an `Idempotency-Key`", "MAX_KEY_CHARS", "characters", "422"),
        ("`limit` of `GET /runs`, which is 1 or more", "MAX_RUNS_LISTED", "", "422"),
    ),
    "shared.storage.redis_keys": (
        ("time for which an `Idempotency-Key` is kept", "IDEMPOTENCY_TTL_S", "s", "it creates another run"),
    ),
}
"""By module what its constants bound: the constant, its unit, and what becomes of what lies beyond it."""
_LARGER = {"bytes": ((2**20, "MiB"), (2**10, "KiB")), "s": ((3600, "h"),)}


def bounds_page() -> str:
    """Returns the page: bounds that are settings, and those that are constants."""
    known = {row[0].strip("`").removeprefix("CLOUD_"): row for row in rows(CloudSettings)}
    settings = table(("variable", "type", "default", "meaning"), (known[name] for name in SETTINGS))
    constants = table(("what is bounded", "at most", "what comes after it", "constant"), _constants())
    parts = ["# Bounds", _INTRODUCTION, "## Settings", _SETTINGS, settings, _COST, "## Constants", constants]
    return "\n\n".join(parts) + "\n"


def _constants() -> Iterator[tuple[str, ...]]:
    for module, bounds in CONSTANTS.items():
        for what, name, unit, after in bounds:
            place = f"`{name}` of `{module.replace('.', '/')}.py`"
            yield what, amount(getattr(import_module(module), name), unit), after, place


def amount(value: float, unit: str) -> str:
    """Returns a number with its unit, in the largest unit of which it is a multiple: 64 KiB for 65536 bytes."""
    for scale, larger in _LARGER.get(unit, ()):
        if value >= scale and value % scale == 0:
            return f"{value / scale:,g} {larger}"
    return f"{value:,.0f} {unit}".strip()
