"""`create_app(settings)`: the cloud as a FastAPI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
from fastapi import APIRouter, FastAPI

from cloud_server.api import membership as membership_api
from cloud_server.api import metrics as metrics_api
from cloud_server.api import nodes as nodes_api
from cloud_server.api import runs as runs_api
from cloud_server.dependencies import Cloud
from cloud_server.metrics import CloudMetrics
from cloud_server.nodes.fleet import Fleet
from cloud_server.nodes.registry import Registry
from cloud_server.runs.edge_client import EdgeClient
from cloud_server.runs.evaluation import Evaluator
from cloud_server.runs.events import log_run_event, to_all
from cloud_server.runs.manager import RunManager
from cloud_server.runs.repository import RunRepository
from cloud_server.runs.results_writer import ResultsFolder
from cloud_server.runs.run_state import CloudServices
from cloud_server.runs.tracking import tracking_of
from cloud_server.settings import CloudSettings
from shared.federation.experiment import ExperimentCache
from shared.runtime.compute_thread import ComputeThread
from shared.service.app import guards_of, make_app
from shared.service.body_limit import BodyLimit
from shared.service.client import Caller
from shared.storage.blobs import Blobs
from shared.storage.key_value import RedisStore, Store

ROUTES = APIRouter()
"""All endpoints of the cloud."""
for _part in (runs_api.open_router, runs_api.router, nodes_api.router, metrics_api.router, membership_api.router):
    ROUTES.include_router(_part)


def create_app(
    settings: CloudSettings,
    transport: httpx.AsyncBaseTransport | None = None,
    store: Store | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The cloud; `transport` and `store` replace network and Redis in tests, `clock` decides which nodes are alive."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(transport=transport, follow_redirects=False, limits=limits) as client:
            kept = store or RedisStore(settings.redis_url)
            cloud = build(settings, client, kept, app.state.closing, transport, clock)
            app.state.cloud = cloud
            cloud.runs.start()
            cloud.tracking.start(cloud.repository)
            yield
            cloud.closing.set()
            await cloud.runs.stop()
            await cloud.tracking.stop()
            await cloud.results.close()
            for thread in cloud.threads:
                thread.close()
            await cloud.store.close()

    app = make_app("StrataFL cloud", lifespan, routes=ROUTES, guards=guards_of(settings, metrics_like="API"))
    tokens = settings.common
    app.add_middleware(BodyLimit, tokens=(tokens.api_token, tokens.tier_token), limit=settings.max_spec_bytes)
    return app


def build(
    settings: CloudSettings,
    client: httpx.AsyncClient,
    store: Store,
    closing: asyncio.Event,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Cloud:
    """The cloud, wired together. It computes on one thread and evaluates on another."""
    metrics = CloudMetrics()
    caller = Caller(client, settings.common.tier_token, settings.max_body_bytes, metrics.exchanged)
    thread, evaluating = ComputeThread(), ComputeThread()
    registry = Registry(store, caller, settings.allowed_networks, settings.ttl_s, clock)
    blobs = Blobs(settings.state_dir / "blobs", fsync=settings.common.fsync)
    tracking = tracking_of(settings.runs_dir, transport)
    repository = RunRepository(
        store, blobs, thread, settings.max_runs, to_all(metrics.on_event, log_run_event, tracking.on_event)
    )
    results = ResultsFolder(settings.runs_dir, evaluating)
    services = CloudServices(
        repository=repository,
        registry=registry,
        edges=EdgeClient(registry, caller),
        experiments=ExperimentCache(settings.common.data_dir, settings.common.cache_dir),
        thread=thread,
        evaluator=Evaluator(repository, evaluating),
        results=results,
        settle_s=settings.settle_s,
    )
    runs = RunManager(services)
    metrics.watch(registry, runs, services.evaluator)
    fleet = Fleet(store, registry, runs.seats_by_agent, settings.ttl_s)
    threads = (thread, evaluating)
    return Cloud(settings, store, registry, repository, runs, fleet, results, tracking, threads, metrics, closing)
