"""The errors of StrataFL.

Every error that a person or another tier may see derives from `StrataError`. It has an HTTP status and a stable code,
so that one handler turns all of them into `application/problem+json`. Each class says when it is raised.

    StrataError             500  internal
      BadInput              422  bad_input
        UnknownName         422  unknown_name
        UserCodeFailed      422  user_code
      WireError             400  wire
        Garbled             400  garbled
        TooLarge            413  too_large
        HeadTooLarge        431  too_large
      NotFinite             422  not_finite
      OutOfBound            422  out_of_bound
      NotFound              404  not_found
      Conflict              409  conflict
      PlacementUnknown      428  seating_unknown
      Unauthorised          401  unauthorised
      Forbidden             403  forbidden
      Unreachable           502  unreachable
        DeadlineExceeded    504  deadline
      Lost                  502  lost
      NotReady              503  not_ready
      Busy                  503  busy
      TooSlow               408  too_slow
      TooMany               429  too_many
        Throttled           429  throttled
      Misdirected           421  misdirected
      OtherProtocol         409  other_protocol
      Cancelled             409  cancelled

The stores add errors of their own: `shared.storage.blobs`, `shared.storage.key_value`.
"""

from __future__ import annotations

from shared.core.formatting import did_you_mean


class StrataError(Exception):
    """An error with an HTTP status, a stable code and, where one field is at fault, its path."""

    status: int = 500
    code: str = "internal"
    retry_after_s: int | None = None
    """Seconds after which the request may succeed (`Retry-After`), where they are known."""

    def __init__(self, detail: str, *, field: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class BadInput(StrataError):
    """A field of a spec, query or body is wrong (422)."""

    status, code = 422, "bad_input"


class UnknownName(BadInput):
    """No algorithm, model, data set, policy or the like has that name (422).

    The message names the nearest known one and lists all.
    """

    code = "unknown_name"

    def __init__(self, kind: str, name: str, known: list[str], *, field: str | None = None, more: str = "") -> None:
        names, prefix = sorted(known), f"{field}: " if field else ""
        hint = did_you_mean(name, names) or ";"
        super().__init__(f"{prefix}unknown {kind} {name[:100]!r}{hint} known: {', '.join(names)}{more}", field=field)


class UserCodeFailed(BadInput):
    """Code of a user raised (422): a plug-in, or a module that it builds; the message has type, text, file and line."""

    code = "user_code"


class WireError(StrataError):
    """A body is not a valid record of the expected type (400)."""

    status, code = 400, "wire"


class Garbled(WireError):
    """A body was cut off or does not match its checksum (400); the request is repeated."""

    code = "garbled"


class TooLarge(WireError):
    """A body exceeds its limit, and is refused before it is parsed (413)."""

    status, code = 413, "too_large"


class HeadTooLarge(WireError):
    """The head of a request exceeds its limit (431)."""

    status, code = 431, "too_large"


DIVERGES = ": training diverges; a lower lr may help"
"""What is said where the numbers of a training are no longer finite."""


class NotFinite(StrataError):
    """A number is NaN or infinite (422)."""

    status, code = 422, "not_finite"


class OutOfBound(StrataError):
    """An element of an update exceeds its bound (422)."""

    status, code = 422, "out_of_bound"


class NotFound(StrataError):
    """The requested thing does not exist (404)."""

    status, code = 404, "not_found"


class Conflict(StrataError):
    """The thing is not in a state that allows the request (409)."""

    status, code = 409, "conflict"


class PlacementUnknown(StrataError):
    """The edge does not know which agents host its devices (428); the cloud tells it and repeats the request."""

    status, code = 428, "seating_unknown"


class Unauthorised(StrataError):
    """The token is missing or wrong (401)."""

    status, code = 401, "unauthorised"


class Forbidden(StrataError):
    """The caller may not do this, as an agent outside the allowed networks (403)."""

    status, code = 403, "forbidden"


class Unreachable(StrataError):
    """A tier did not answer, or the connection broke (502)."""

    status, code = 502, "unreachable"


class DeadlineExceeded(Unreachable):
    """A deadline passed (504); the message says for which tier or device this one waited."""

    status, code = 504, "deadline"


class Lost(StrataError):
    """An agent or edge fell silent, or was removed, while this tier waited for it (502)."""

    status, code = 502, "lost"


class NotReady(StrataError):
    """Too few edges or devices are connected (503); the message says which."""

    status, code = 503, "not_ready"


class Busy(StrataError):
    """The process has as many connections, or clients of a kind, as it accepts (503)."""

    status, code, retry_after_s = 503, "busy", 5


class TooSlow(StrataError):
    """The body of a request arrived too slowly (408)."""

    status, code = 408, "too_slow"


class TooMany(StrataError):
    """A limit is reached, as that of runs (429); the message names the limit."""

    status, code = 429, "too_many"


class Throttled(TooMany):
    """The caller's address has shown too many wrong tokens (429); the message says how long to wait."""

    code = "throttled"


class Misdirected(StrataError):
    """An order arrived at another recipient than its own (421): addresses change hands when containers restart."""

    status, code = 421, "misdirected"


class OtherProtocol(StrataError):
    """The other tier speaks another version of the protocol between tiers (409); the message says which to upgrade."""

    status, code = 409, "other_protocol"


class Cancelled(StrataError):
    """The work was stopped, since no caller waits for it any more (409)."""

    status, code = 409, "cancelled"
