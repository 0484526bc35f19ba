"""`create_app(settings)`: an agent as a FastAPI application."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from fastapi import FastAPI

from device_agent.dependencies import Agent
from device_agent.device_host import DeviceHost
from device_agent.membership import Membership, agent_id
from device_agent.metrics import AgentMetrics
from device_agent.routes import ROUTES
from device_agent.settings import AgentSettings
from shared.core.plugins import digests
from shared.core.versions import versions
from shared.federation.experiment import ExperimentCache
from shared.identity.assignments import Assignments
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import Revocations
from shared.identity.signing import CloudKey
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.cpu_use import CpuMeter
from shared.service.api.membership import AgentHeartbeat, AgentRegistration, process_of
from shared.service.app import guards_of, make_app
from shared.service.body_limit import BodyLimit
from shared.service.client import Caller, tier_client
from shared.service.idempotency import IdempotentRunner
from shared.service.joining import renewed
from shared.service.needs import Needs
from shared.service.reverse.uplinks import Uplinks
from shared.service.throttle import Throttle


def create_app(
    settings: AgentSettings, transport: httpx2.AsyncBaseTransport | None = None, keys: NodeKeys | None = None
) -> FastAPI:
    """The app of an agent; tests hand in a `transport` that replaces the network.

    `keys` are the agent's, where nodes show certificates.
    """
    revoked = Revocations(CloudKey())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with tier_client(transport, keys) as client:
            agent = build(settings, client, keys, revoked)
            app.state.agent = agent
            agent.membership.needs.start()
            uplinks = uplinks_of(settings, agent.membership, app)
            if settings.connect == "up":
                uplinks.start()
            agent.membership.start()
            async with renewed(keys, agent.membership.caller, settings.cloud_url, revoked):
                yield
            await uplinks.stop()
            await agent.membership.stop()
            await agent.membership.needs.stop()
            await agent.orders.close()
            agent.host.close()

    throttle = Throttle()
    guards = guards_of(settings, throttle, revoked=revoked)
    app = make_app("StrataFL device agent", lifespan, routes=ROUTES, guards=guards)
    own = (settings.common.tier_token,)
    app.add_middleware(BodyLimit, tokens=own, throttle=throttle, apart=("/visits", "/uploads"))
    return app


def uplinks_of(settings: AgentSettings, membership: Membership, app: FastAPI) -> Uplinks:
    """What an agent that dials out polls."""
    nonce = membership.registration.nonce
    return Uplinks(membership.caller, app, nonce, settings.cloud_url, membership.may_hear)


def build(
    settings: AgentSettings,
    client: httpx2.AsyncClient,
    keys: NodeKeys | None = None,
    revoked: Revocations | None = None,
) -> Agent:
    """Creates an agent from its settings, an HTTP client, its keys, and the certificates that are refused."""
    experiments = ExperimentCache(settings.common.data_dir, settings.common.cache_dir)
    metrics, revoked = AgentMetrics(), revoked or Revocations(CloudKey())
    host = DeviceHost(settings.state_dir, experiments, ComputeThread(), metrics, fsync=settings.common.fsync)
    registration = AgentRegistration(
        agent=agent_id(settings.state_dir, durable=settings.common.fsync),
        name=settings.name,
        devices=settings.devices,
        profile=settings.profile,
        connect=settings.connect,
        port=None if settings.connect == "up" else settings.advertise_port or settings.port,
        nonce=secrets.token_hex(16),
        versions=versions(),
        plugins=digests(),
        max_body_bytes=settings.max_body_bytes,
    )
    needs = Needs({"its state": settings.state_dir}, {"STRATA_DATA_DIR": settings.common.data_dir})
    process = process_of(registration.nonce)

    meter = CpuMeter()

    def heartbeat() -> AgentHeartbeat:
        return AgentHeartbeat(
            agent=registration.agent,
            visiting=host.visiting,
            waiting=host.waiting,
            revoked=revoked.issue,
            process=process,
            lacks=needs.lacks,
            clock_s=max(time.time(), 0.0),
            cpu=meter.look(),
        )

    caller = Caller(client, settings.common.tier_token, settings.max_body_bytes, keys, revoked)
    assignments = Assignments(registration.agent, revoked.cloud_key) if keys else None
    membership = Membership(
        caller,
        settings.cloud_url,
        registration,
        heartbeat,
        settings.heartbeat_s,
        settings.node_networks,
        host,
        metrics,
        revoked,
        needs,
    )
    metrics.shown("devices", "Devices that the agent can host", lambda: settings.devices)
    metrics.shown("orders_waiting", "Orders running or waiting", lambda: host.waiting)
    metrics.shown("visiting", "1 while a task runs", lambda: host.visiting is not None)
    return Agent(settings, host, membership, IdempotentRunner(), metrics, assignments)
