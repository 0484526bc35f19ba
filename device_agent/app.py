"""`create_app(settings)`: an agent as a FastAPI application."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from device_agent.dependencies import Agent
from device_agent.device_host import DeviceHost
from device_agent.membership import Membership, agent_id
from device_agent.metrics import AgentMetrics
from device_agent.routes import ROUTES
from device_agent.settings import AgentSettings
from shared.federation.experiment import ExperimentCache
from shared.runtime.compute_thread import ComputeThread
from shared.service.api.membership import AgentHeartbeat, AgentRegistration
from shared.service.app import guards_of, make_app
from shared.service.body_limit import BodyLimit
from shared.service.client import Caller
from shared.service.idempotency import IdempotentRunner


def create_app(settings: AgentSettings, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The app of an agent. Tests hand in a `transport` that replaces the network."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(transport=transport, follow_redirects=False) as client:
            agent = build(settings, client)
            app.state.agent = agent
            agent.membership.start()
            yield
            await agent.membership.stop()
            await agent.orders.close()
            agent.host.close()

    app = make_app("StrataFL device agent", lifespan, routes=ROUTES, guards=guards_of(settings))
    app.add_middleware(BodyLimit, tokens=(settings.common.tier_token,), apart=("/visits", "/uploads"))
    return app


def build(settings: AgentSettings, client: httpx.AsyncClient) -> Agent:
    """Creates an agent from its settings and an HTTP client."""
    experiments = ExperimentCache(settings.common.data_dir, settings.common.cache_dir)
    metrics = AgentMetrics()
    host = DeviceHost(settings.state_dir, experiments, ComputeThread(), metrics, fsync=settings.common.fsync)
    registration = AgentRegistration(
        agent=agent_id(settings.state_dir),
        name=settings.name,
        devices=settings.devices,
        profile=settings.profile,
        port=settings.advertise_port or settings.port,
        nonce=secrets.token_hex(16),
    )

    def heartbeat() -> AgentHeartbeat:
        return AgentHeartbeat(agent=registration.agent, visiting=host.visiting, waiting=host.waiting)

    caller = Caller(client, settings.common.tier_token, settings.max_body_bytes)
    membership = Membership(
        caller,
        settings.cloud_url,
        registration,
        heartbeat,
        settings.heartbeat_s,
        settings.allowed_networks,
        host,
        metrics,
    )
    metrics.shown("devices", "Devices that the agent can host", lambda: settings.devices)
    metrics.shown("orders_waiting", "Orders running or waiting", lambda: host.waiting)
    metrics.shown("visiting", "1 while a visit runs", lambda: host.visiting is not None)
    return Agent(settings, host, membership, IdempotentRunner(), metrics)
