"""The errors of StrataFL, drawn once.

Every error that a person or another tier may see derives from `StrataError`; it knows its HTTP status and
a stable code, so that one handler turns all of them into `application/problem+json`.

    StrataError                500 internal
      BadInput                 422 bad_input          a field of a spec, query or body is wrong
        UnknownName            422 unknown_name       no algorithm, model, data set, policy ... of that name
      WireError                400 wire               a body is no record of the expected type
        Garbled                400 garbled            a body was cut off, or is not what was sent; asked for again
        TooLarge               413 too_large          a body exceeds the limit, refused before it is parsed
        HeadTooLarge           431 too_large          so does the head of a request
      NotFinite                422 not_finite         NaN or infinity where a number must stand
      OutOfBound               422 out_of_bound       an element of an update exceeds the stated bound of the exact sum
      NotFound                 404 not_found
      Conflict                 409 conflict           the thing is not in a state that allows this
      SeatingUnknown           428 seating_unknown    the edge does not (any more) know the seating of this round
      Unauthorised             401 unauthorised
      Forbidden                403 forbidden          for instance an agent outside the allowed networks
      Unreachable              502 unreachable        a tier did not answer or broke off
        DeadlineExceeded       504 deadline           a wait ended; the message says for whom
      Lost                     502 lost               an agent or edge fell silent, or was taken away
      NotReady                 503 not_ready          too few edges or devices; the message says which
      Busy                     503 busy               more connections than this process takes
      TooSlow                  408 too_slow           a body came too slowly
      TooMany                  429 too_many           more runs than are kept; the message names the setting
      Misdirected              421 misdirected        an order for somebody else, who had this address before
      Cancelled                409 cancelled          nobody waits for this work any more
"""

from __future__ import annotations


class StrataError(Exception):
    """An error with an HTTP status, a stable code and, where there is one, the path of the field at fault."""

    status: int = 500
    code: str = "internal"

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field


class BadInput(StrataError):
    """A field of a spec, query or body is wrong."""

    status, code = 422, "bad_input"


class UnknownName(BadInput):
    """Nothing of that name exists; the message lists what does."""

    code = "unknown_name"

    def __init__(self, kind: str, name: str, known: list[str], *, field: str | None = None) -> None:
        place = f"{field}: " if field else ""
        super().__init__(f"{place}unknown {kind} {name!r}; known: {', '.join(sorted(known))}", field=field)


class WireError(StrataError):
    """A body is no record of the expected type."""

    status, code = 400, "wire"


class Garbled(WireError):
    """A body was cut off, or is not what its digest says: asked for again, the answer may be whole."""

    code = "garbled"


class TooLarge(WireError):
    """A body exceeds the limit."""

    status, code = 413, "too_large"


class HeadTooLarge(WireError):
    """The head of a request exceeds the limit."""

    status, code = 431, "too_large"


class NotFinite(StrataError):
    """NaN or infinity where a number must stand."""

    status, code = 422, "not_finite"


class OutOfBound(StrataError):
    """An element exceeds the bound up to which sums are exact."""

    status, code = 422, "out_of_bound"


class NotFound(StrataError):
    """There is no such thing."""

    status, code = 404, "not_found"


class Conflict(StrataError):
    """The thing is not in a state that allows this."""

    status, code = 409, "conflict"


class PlacementUnknown(StrataError):
    """The edge does not know the seating that a round names; the cloud sends it and asks again."""

    status, code = 428, "seating_unknown"


class Unauthorised(StrataError):
    """The token is missing or wrong."""

    status, code = 401, "unauthorised"


class Forbidden(StrataError):
    """The caller may not do this."""

    status, code = 403, "forbidden"


class Unreachable(StrataError):
    """A tier did not answer, or broke off in the middle."""

    status, code = 502, "unreachable"


class DeadlineExceeded(Unreachable):
    """A wait ended without what was waited for; the message names it."""

    status, code = 504, "deadline"


class Lost(StrataError):
    """An agent or an edge fell silent, or was taken away, while it was waited for."""

    status, code = 502, "lost"


class NotReady(StrataError):
    """Too few edges or devices are there; the message says which."""

    status, code = 503, "not_ready"


class Busy(StrataError):
    """More connections than this process takes."""

    status, code = 503, "busy"


class TooSlow(StrataError):
    """A request's body came too slowly."""

    status, code = 408, "too_slow"


class TooMany(StrataError):
    """More than a limit allows; the message names the setting."""

    status, code = 429, "too_many"


class Misdirected(StrataError):
    """An order for somebody else: addresses change hands when containers restart."""

    status, code = 421, "misdirected"


class Cancelled(StrataError):
    """Nobody waits for this work any more."""

    status, code = 409, "cancelled"
