"""`create_app(settings)`: an edge as a FastAPI application."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx2
from fastapi import FastAPI

from edge_server.dependencies import Edge
from edge_server.membership import Membership
from edge_server.metrics import EdgeMetrics
from edge_server.roster import Roster
from edge_server.round_handler import RoundHandler
from edge_server.routes import ROUTES
from edge_server.settings import EdgeSettings
from edge_server.state_store import EdgeStateStore
from shared.core.plugins import digests
from shared.core.versions import versions
from shared.federation.experiment import ExperimentCache
from shared.identity.names import CLOUD
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import Revocations
from shared.identity.signing import CloudKey
from shared.runtime.awake import awake
from shared.runtime.compute_thread import ComputeThread
from shared.service.api.membership import EdgeRegistration
from shared.service.app import guards_of, make_app
from shared.service.body_limit import BodyLimit
from shared.service.client import Caller, tier_client
from shared.service.idempotency import IdempotentRunner
from shared.service.joining import renewed
from shared.service.needs import Needs
from shared.service.reverse.desk import Desk
from shared.service.reverse.routes import REQUESTS
from shared.service.reverse.taker import Taker
from shared.service.reverse.transport import reverse_mounts
from shared.service.settings import host_id
from shared.service.throttle import Throttle
from shared.storage import redis_keys
from shared.storage.blobs import Blobs
from shared.storage.key_value import RedisStore, Store, StoreUser
from shared.storage.states import FileStateStore


def create_app(
    settings: EdgeSettings,
    transport: httpx2.AsyncBaseTransport | None = None,
    store: Store | None = None,
    clock: Callable[[], float] = time.monotonic,
    keys: NodeKeys | None = None,
) -> FastAPI:
    """The app of an edge; tests pass a `transport` and a `store` that take the places of network and Redis.

    `clock` decides which agents are alive; `keys` are the edge's, where nodes show certificates.
    """
    revoked = Revocations(CloudKey())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with tier_client(transport, keys, reverse_mounts(app.state.desk)) as client:
            redis = RedisStore(settings.redis_url, user=partial(_user, settings, keys))
            edge = build(settings, client, store or redis, app.state.desk, clock, keys, revoked)
            app.state.edge = edge
            edge.needs.start()
            uplink = Taker(edge.membership.caller, app, edge.membership.registration.nonce, settings.cloud_url, CLOUD)
            if settings.connect == "up":
                uplink.start()
            edge.membership.start()
            async with renewed(keys, edge.membership.caller, settings.cloud_url, revoked, lambda: redis.refuses_user):
                yield
            await uplink.stop()
            await edge.membership.stop()
            await edge.needs.stop()
            await edge.orders.close()
            edge.handler.flights.close()
            edge.thread.close()
            await edge.store.close()

    throttle = Throttle()
    guards = guards_of(settings, throttle, revoked=revoked)
    app = make_app("StrataFL edge", lifespan, routes=ROUTES, guards=guards)
    app.state.desk = Desk(app.state.closing)
    app.add_middleware(BodyLimit, tokens=(settings.common.tier_token,), throttle=throttle, apart=("/rounds", REQUESTS))
    return app


def _user(settings: EdgeSettings, keys: NodeKeys | None) -> StoreUser | None:
    """As whom the edge reaches its keys in Redis; None where it is not asked."""
    password = keys.store_password if keys else ""
    return StoreUser(redis_keys.user_of_edge(settings.edge), password) if password else None


def build(
    settings: EdgeSettings,
    client: httpx2.AsyncClient,
    store: Store,
    desk: Desk,
    clock: Callable[[], float],
    keys: NodeKeys | None,
    revoked: Revocations,
) -> Edge:
    """Builds the objects of an edge and connects them."""
    metrics, roster, thread = EdgeMetrics(), Roster(clock=awake(settings.ttl_s, clock)), ComputeThread()
    metrics.watch(roster, settings.ttl_s)
    caller = Caller(client, settings.common.tier_token, settings.max_body_bytes, keys, revoked, metrics.exchanged)
    registration = EdgeRegistration(
        edge=settings.edge,
        name=settings.name or host_id(),
        connect=settings.connect,
        port=settings.advertise_port or settings.port,
        host=settings.advertise_host or "",
        nonce=secrets.token_hex(16),
        versions=versions(),
        plugins=digests(),
        max_body_bytes=settings.max_body_bytes,
    )
    states = EdgeStateStore(
        edge_name=settings.edge,
        store=store,
        blobs=Blobs(settings.state_dir / "blobs", fsync=settings.common.fsync),
        seat_states=FileStateStore(settings.state_dir / "workers", fsync=settings.common.fsync),
        thread=thread,
    )
    handler = RoundHandler(
        edge_name=settings.edge,
        states=states,
        experiments=ExperimentCache(settings.common.data_dir, settings.common.cache_dir),
        thread=thread,
        caller=caller,
        roster=roster,
        ttl_s=settings.ttl_s,
        metrics=metrics,
    )
    needs = _needs(settings, store)
    membership = Membership(
        caller, settings.cloud_url, registration, roster, settings.heartbeat_s, handler, revoked, needs, desk
    )
    desk.on_missing = membership.send_heartbeat_now
    return Edge(
        settings,
        store,
        roster,
        membership,
        handler,
        IdempotentRunner(keep=lambda answer: not answer.again),
        thread,
        metrics,
        needs,
    )


def _needs(settings: EdgeSettings, store: Store) -> Needs:
    """What the edge needs to answer: a Redis that takes writes, its folder, and the data sets."""
    key, ttl_s = redis_keys.edge_probe(settings.edge), settings.ttl_s

    async def writes() -> None:
        await store.put(key, b"1", ttl_s)
        await store.delete(key)

    return Needs({"its state": settings.state_dir}, {"STRATA_DATA_DIR": settings.common.data_dir}, writes)
