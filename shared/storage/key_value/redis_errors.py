"""What a Redis server or the way to it refuses, in words for people."""

from __future__ import annotations

import re

from redis.exceptions import AskError, AuthenticationError, ClusterCrossSlotError, ClusterError, MovedError

CLUSTER = "is in cluster mode, which is not supported: a server that holds all keys is needed"
_NO_DATABASE = (  # so says a cluster of Valkey of all but its first one, where one of Redis names the cluster
    "has no database of the number that its address names, or is in cluster mode, which is not supported"
)
_CLUSTER_ERRORS = (AskError, MovedError, ClusterError, ClusterCrossSlotError)  # ClusterDownError is a ClusterError
_BROKEN_OFF = re.compile("closed by server|connection lost|connection reset|timeout|error connecting", re.IGNORECASE)


def refuses_user(error: BaseException) -> bool:
    """Whether a connection failed since Redis does not know its user or password; the client wraps that error."""
    return any(isinstance(each, AuthenticationError) for each in (error, error.__cause__))


def lost_because(error: BaseException, *, tls: bool, answered: bool) -> str:
    """Returns why there is no connection: the end of a sentence that begins with the server.

    Args:
        error: of the client.
        tls: whether the address asks for TLS.
        answered: whether the server has ever answered; then the address is right.
    """
    reason = str(error) or type(error).__name__
    if refuses_user(error):
        return f"refuses the user or password of its address: {reason}"
    return f"does not answer: {reason}{'' if answered else _hint(reason, tls=tls)}"


def _hint(reason: str, *, tls: bool) -> str:
    if "SSL" in reason or (tls and _BROKEN_OFF.search(reason)):
        return " (with rediss:// the server must speak TLS, with a certificate that is trusted here)"
    if _BROKEN_OFF.search(reason) and not re.search("timeout|error connecting", reason, re.IGNORECASE):
        return " (is it a Redis server? one that speaks TLS needs rediss://)"
    return ""


def misconfigured(error: BaseException) -> str | None:
    """Returns what about a server or its address can never work, as the end of such a sentence; None if nothing."""
    text = str(error)
    if isinstance(error, _CLUSTER_ERRORS) or "not allowed in cluster mode" in text:
        return CLUSTER
    if "DB index is out of range" in text:
        return _NO_DATABASE
    return None
