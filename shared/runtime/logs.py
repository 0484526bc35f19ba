"""The log: one event a line, with the ids by which a round is followed through the tiers.

A line is a JSON object or, for people at a terminal, a text with the same content (`STRATA_LOG_FORMAT`). Whatever names
and messages contain, an event stays one line and moves no cursor: JSON escapes everything beyond ASCII, text everything
that cannot be printed. No result depends on the log.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("strata.events")
FORMATS = ("json", "text")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
IDS = ("run", "round", "edge_round", "wave", "home", "edge", "agent", "seat")
"""The ids of a line, in their order."""
FIRST = ("at", "level", "tier", "process", "event")
"""The fields of every line, in their order."""
MAX_CHARACTERS = 2000
"""Longest value; a traceback may be four times as long."""
_BARE = re.compile(r"[A-Za-z0-9_.:/+@%-]+")
_as_json = json.JSONEncoder(ensure_ascii=True, default=str).encode
_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default={})  # noqa: B039 - never changed, only replaced


@contextmanager
def log_context(**ids: object) -> Iterator[None]:
    """Adds ids to the lines logged within a `with`, in tasks begun there, and in work given to the compute thread."""
    token = _about.set({**_about.get(), **ids})
    try:
        yield
    finally:
        _about.reset(token)


def log_context_of(ids: Callable[..., Mapping[str, object]]) -> Callable[[F], F]:
    """A decorator that runs a function, or awaits a coroutine function, within the `log_context` of its arguments.

    Args:
        ids: is called with the arguments of the function and returns the ids, as in
            `@log_context_of(lambda self, *_: {"round": self.round_no})`.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with log_context(**ids(*args, **kwargs)):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            with log_context(**ids(*args, **kwargs)):
                return await function(*args, **kwargs)

        return cast("F", wait if inspect.iscoroutinefunction(function) else call)

    return decorate


def log_event(event: str, /, *, level: int = logging.INFO, **fields: object) -> None:
    """Logs an event with its fields; fields that are None are left out."""
    log_events(event, [fields], level=level)


def log_events(event: str, each: Sequence[Mapping[str, object]], *, level: int = logging.INFO) -> None:
    """Logs an event several times, a line for each of these fields; all lines are made at once and written together.

    The record is made here: `log.log` would first look for the line of code that called it, which no line names.
    """
    if each and log.isEnabledFor(level):
        about = {"event": event, "each": each}
        log.handle(log.makeRecord(log.name, level, "", 0, event, (), None, extra=about))


def configure(tier: str, process: str) -> None:
    """Lets this process log to stderr, as `STRATA_LOG_LEVEL` and `STRATA_LOG_FORMAT` say.

    Without the latter, lines are text if stderr is a terminal, else JSON.

    Raises:
        SystemExit: a variable has an unknown value.
    """
    level = _chosen("STRATA_LOG_LEVEL", (os.environ.get("STRATA_LOG_LEVEL") or "INFO").upper(), LEVELS)
    usual = "text" if sys.stderr.isatty() else "json"
    form = _chosen("STRATA_LOG_FORMAT", (os.environ.get("STRATA_LOG_FORMAT") or usual).lower(), FORMATS)
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(tier, process, form))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def _chosen(variable: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise SystemExit(f"{variable}: {value[:40]!r} is not one of {', '.join(known)}")
    return value


class LineFormatter(logging.Formatter):
    """Formats a record of `logging` as one line, or as one for each of its fields.

    Args:
        tier: of the process.
        process: its name.
        form: `json` or `text`.
    """

    def __init__(self, tier: str, process: str, form: str = "json") -> None:
        super().__init__()
        self.tier, self.process, self.form = tier, process, form

    def format(self, record: logging.LogRecord) -> str:
        """Returns the lines."""
        written = shown if self.form == "text" else _as_json
        return "\n".join(map(written, self.lines(record)))

    def lines(self, record: logging.LogRecord) -> Iterator[dict[str, Any]]:
        """Yields the fields of a record's lines; a message of another logger is the event `log`, with its `text`."""
        event, more = getattr(record, "event", None), dict[str, object]()
        if event is None:
            more = {"text": record.getMessage(), "logger": record.name}
        if record.exc_info:
            text = "".join(traceback.format_exception(*record.exc_info))
            more["traceback"] = text[-4 * MAX_CHARACTERS :]
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = dict(zip(FIRST, (at, record.levelname.lower(), self.tier, self.process, event or "log"), strict=True))
        about, each = _about.get(), cast("Sequence[Mapping[str, Any]]", getattr(record, "each", ({},)))
        for own in each:
            fields = {**about, **own, **more}
            ids = {name: fields.pop(name) for name in IDS if name in fields}
            line = {**head, **ids, **fields}
            yield {name: _short(name, value) for name, value in line.items() if value is not None}


def _short(name: str, value: object) -> object:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinity
    return str(value) if name == "traceback" else str(value)[:MAX_CHARACTERS]


# ---- lines as text


def shown(line: Mapping[str, Any]) -> str:
    """Returns a line as text: `18:04:09.123 cloud round.committed run=... round=3`."""
    at = str(line.get("at", ""))
    clock = at[11:23] if re.fullmatch(r"[0-9T:.+-]{20,40}", at) else "?"
    level = str(line.get("level", "info"))
    words = [clock, f"{plain(str(line.get('process', '?'))):<8}", plain(str(line.get("event", "?")))]
    if level not in ("info", "debug"):
        words.insert(2, plain(level.upper()))
    rest = {name: value for name, value in line.items() if name not in (*FIRST, "text", "logger", "traceback")}
    words += [f"{plain(str(name))}={_value(value)}" for name, value in rest.items()]
    words += [plain(str(line[name])) for name in ("text",) if name in line]
    words += [_value(line[name]) for name in ("traceback",) if name in line]
    return " ".join(words)


def unfolded(line: Mapping[str, Any]) -> str:
    """Returns a line as text, with its traceback on indented lines below it."""
    frames = str(line.get("traceback", "")).splitlines()
    head = shown({name: value for name, value in line.items() if name != "traceback"})
    return "\n".join([head, *(f"    | {plain(part)}" for part in frames)])


def plain(text: str) -> str:
    """Escapes all characters that cannot be printed, as those that move a cursor or reverse the writing direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=True)


def read(raw: str) -> dict[str, Any] | None:
    """Returns the fields of a line that a tier wrote as JSON, None for any other line."""
    try:
        line = json.loads(raw) if raw.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    ours = isinstance(line, dict) and all(isinstance(line.get(name), str) for name in FIRST)
    return line if ours else None
