"""The HTTP server of every tier: its socket, its limits, its shutdown."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import uvicorn
import uvloop
from fastapi import FastAPI
from uvicorn.server import HANDLED_SIGNALS

from shared.core.addresses import in_url
from shared.core.errors import StrataError
from shared.identity.node_keys import NodeKeys
from shared.runtime import logs
from shared.runtime.compute_thread import pin_threads
from shared.runtime.signals import heeded
from shared.runtime.state_lock import alone_in
from shared.runtime.streams import open_standard
from shared.service.app import log_mode
from shared.service.http_protocol import KEEP_ALIVE_S, Limits, Protocol
from shared.service.settings import TierSettings

S = TypeVar("S", bound=TierSettings)
GRACEFUL_S = 5
"""Seconds that open requests get at shutdown."""
FILES = 2**16
"""Open files that a process asks for: each connection takes one."""
WS_BYTES = 2**20
"""Largest message of a websocket."""
log = logging.getLogger("strata")


class Server(uvicorn.Server):
    """uvicorn's server; it sets `app.state.closing` before it waits for open requests to end.

    Signals that were ignored when the process began stay ignored.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._closing = app.state.closing

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Lets signals end the server in the meantime."""
        ignored = set(HANDLED_SIGNALS) - set(heeded(HANDLED_SIGNALS))
        with super().capture_signals():
            for number in ignored if threading.current_thread() is threading.main_thread() else ():
                signal.signal(number, signal.SIG_IGN)
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shuts down; streams of events end when `closing` is set."""
        self._closing.set()
        await super().shutdown(sockets)


class Loop(uvloop.Loop):
    """uvloop's event loop, whose servers wait `handshake_s` seconds for the handshake of TLS, not a minute."""

    handshake_s = 60.0

    async def create_server(self, *args: Any, **options: Any) -> Any:
        """Makes a server."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", self.handshake_s)
        return await super().create_server(*args, **options)


class Config(uvicorn.Config):
    """uvicorn's configuration, with our event loop; `handshake_s` as there."""

    handshake_s = 60.0

    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        """Returns what makes the event loop."""

        def make() -> Loop:
            loop = Loop()
            loop.handshake_s = self.handshake_s
            return loop

        return make


def listen(settings: TierSettings) -> socket.socket:
    """Returns the listening socket, inherited (`settings.fd`) or bound here, and sets `settings.port` to its port."""
    if settings.fd is not None:
        found = socket.socket(fileno=settings.fd)
    else:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(1024)
    settings.port = found.getsockname()[1]
    return found


def limits_of(settings: TierSettings) -> Limits:
    """Returns the limits of a tier; connections take at most half of the files that the process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    room = FILES if soft == resource.RLIM_INFINITY else soft
    if settings.max_connections > room // 2:
        log.warning("%s files may be open: no more than %s connections are taken", room, room // 2)
    return Limits(
        head_s=settings.head_s,
        body_s=settings.body_s,
        body_rate=settings.body_rate,
        unread_s=settings.unread_s,
        connections=min(settings.max_connections, room // 2),
    )


def configure(
    app: FastAPI, settings: TierSettings, *, websockets: bool = False, keys: NodeKeys | None = None
) -> uvicorn.Config:
    """Returns uvicorn's configuration. A caller's address is that of its socket; no header changes it."""
    protocol: Any = partial(Protocol, limits_of(settings))
    config = Config(
        app,
        log_config=None,  # its lines go through our handler; single requests are not logged
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        http=protocol,
        ws="websockets-sansio" if websockets else "none",
        ws_max_size=WS_BYTES,
        ssl_context_factory=(lambda config, default: keys.server) if keys else None,
    )
    config.handshake_s = settings.head_s
    return config


def serve(
    tier: str,
    read_settings: Callable[[], S],
    create_app: Callable[..., FastAPI],
    keys_of: Callable[[S], NodeKeys],
    *,
    websockets: bool = False,
) -> None:
    """Runs a tier until a signal stops it.

    Args:
        tier: its name.
        read_settings: reads the tier's settings from the environment.
        create_app: makes its app, given the node's keys where nodes show certificates.
        keys_of: makes the node's keys and gets its certificate; called only where nodes show certificates.
        websockets: whether the app serves websockets.
    """
    open_standard()
    try:
        logs.configure(tier, tier)  # what is said of the settings has the form of all lines
        settings = read_settings()
        logs.configure(tier, getattr(settings, "name", tier))
        pin_threads()
        held = None if tier == "cloud" else alone_in(settings.state_dir, tier)  # of clouds, one owns what is stored
        bound = [listen(settings)] if settings.listens else []
        log_mode(tier, settings)
        where = f"on {in_url(settings.host)}:{settings.port}" if bound else "on nothing and dials out"
        log.info("%s listens %s", tier, where)
        keys = keys_of(settings) if settings.common.secure else None
        app = create_app(settings, keys=keys)
    except StrataError as error:
        raise SystemExit(f"{tier} could not start: {error.detail}") from None
    server = Server(configure(app, settings, websockets=websockets, keys=keys), app)
    server.run(sockets=bound)
    del held
    if not server.started:
        raise SystemExit(f"{tier} could not start; see the log above")
