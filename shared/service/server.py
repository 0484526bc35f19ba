"""The server that every tier runs: its socket, its limits, its end."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from shared.runtime import logs
from shared.runtime.worker import pin_threads
from shared.service.app import say_mode
from shared.service.http_protocol import KEEP_ALIVE_S, Limits, Protocol
from shared.service.settings import TierSettings

GRACEFUL_S = 5
FILES = 2**16
WS_BYTES = 2**20
"""Largest message of a websocket."""
log = logging.getLogger("strata")


class Server(uvicorn.Server):
    """Tells the app that it ends before it waits for what the app is doing: `app.state.closing` is set."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._closing = app.state.closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; streams of events have no other end."""
        self._closing.set()
        await super().shutdown(sockets)


def listen(settings: TierSettings) -> socket.socket:
    """The listening socket: inherited by number (`fd`), or bound here; `settings.port` is set to its port."""
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
    """How long clients are waited for; connections take at most half of the files that this process may open."""
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


def configure(app: FastAPI, settings: TierSettings, *, websockets: bool = False) -> uvicorn.Config:
    """How uvicorn runs a tier. A caller's address is that of its socket: no header may change it."""
    protocol: Any = partial(Protocol, limits_of(settings))
    return uvicorn.Config(
        app,
        log_config=None,  # what uvicorn says goes the way of all lines; it says no word of single requests
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        loop="uvloop",
        http=protocol,
        ws="websockets-sansio" if websockets else "none",
        ws_max_size=WS_BYTES,
    )


def serve(tier: str, settings: TierSettings, create_app: Callable[[Any], FastAPI], *, websockets: bool = False) -> None:
    """Run a tier until it is told to stop."""
    logs.configure(tier, getattr(settings, "name", tier))
    pin_threads()
    bound = listen(settings)
    say_mode(tier, settings)
    log.info("%s listens on %s:%s", tier, settings.host, settings.port)
    app = create_app(settings)
    server = Server(configure(app, settings, websockets=websockets), app)
    server.run(sockets=[bound])
    if not server.started:
        raise SystemExit(f"{tier} could not start; the reason stands above")
