"""`create_app(settings)`: the cloud as a FastAPI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx2
from fastapi import APIRouter, FastAPI, Request

from cloud_server.api import identities as identities_api
from cloud_server.api import membership as membership_api
from cloud_server.api import metrics as metrics_api
from cloud_server.api import nodes as nodes_api
from cloud_server.api import runs as runs_api
from cloud_server.api import users as users_api
from cloud_server.dependencies import Cloud
from cloud_server.metrics import CloudMetrics
from cloud_server.nodes.fleet import Fleet
from cloud_server.nodes.identities import Identities
from cloud_server.nodes.registry import Registry
from cloud_server.nodes.revoked import Revoked
from cloud_server.nodes.store_users import StoreUsers
from cloud_server.ownership import Ownership
from cloud_server.runs.agent_shares import AgentShares
from cloud_server.runs.edge_client import EdgeClient
from cloud_server.runs.evaluation import Evaluator
from cloud_server.runs.event_feed import EventFeeds
from cloud_server.runs.events import log_run_event, now, to_all
from cloud_server.runs.manager import RunManager
from cloud_server.runs.quotas import Quotas
from cloud_server.runs.repository import RunRepository
from cloud_server.runs.results_writer import ResultsFolders
from cloud_server.runs.run_state import CloudServices
from cloud_server.runs.tracking import tracking_of
from cloud_server.settings import CloudSettings
from cloud_server.users.tokens import Tokens, Users
from shared.core.errors import OtherProtocol
from shared.federation.experiment import ExperimentCache
from shared.identity.assignments import Assigner
from shared.identity.authority import authority_of
from shared.identity.join_tokens import load_tokens
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import RevocationSigner
from shared.identity.signing import Signer
from shared.runtime.awake import awake
from shared.runtime.compute_thread import ComputeThread
from shared.service.app import guards_of, make_app
from shared.service.body_limit import JSON_BYTES, BodyLimit
from shared.service.client import Caller, tier_client
from shared.service.response_headers import PAGE_POLICY, ResponseHeaders
from shared.service.reverse.desk import Desk
from shared.service.reverse.routes import REQUESTS
from shared.service.reverse.transport import reverse_mounts
from shared.service.throttle import Throttle
from shared.storage.blobs import Blobs
from shared.storage.kept_id import kept_id, next_count
from shared.storage.key_value import FencedStore, RedisStore, Store, has_user

TIER_PATHS = ("/agents", "/edges", "/heartbeats", "/polls", "/fleet", "/identities")
"""Where other tiers send JSON, which may be longer than what users send."""
ROUTES = APIRouter()
"""All endpoints of the cloud."""
for _part in (
    *(runs_api.open_router, runs_api.router, nodes_api.router, metrics_api.router, membership_api.router),
    *(identities_api.open_router, identities_api.router, users_api.router),
):
    ROUTES.include_router(_part)


def create_app(
    settings: CloudSettings,
    transport: httpx2.AsyncBaseTransport | None = None,
    store: Store | None = None,
    clock: Callable[[], float] = time.monotonic,
    keys: NodeKeys | None = None,
) -> FastAPI:
    """The cloud; `transport` and `store` replace network and Redis in tests, `clock` decides which nodes are alive.

    `keys` are the cloud's, where nodes show certificates.
    """
    revoked, tokens = Revoked(settings.state_dir / "identity" / "revoked.json"), Tokens()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with tier_client(transport, keys, reverse_mounts(app.state.desk)) as client:
            with_users = keys is not None and store is None and not has_user(settings.redis_url)
            users = StoreUsers(settings.redis_url, settings.state_dir) if with_users else None
            kept = store or (users.store if users else RedisStore(settings.redis_url))
            closing = app.state.closing
            cloud = build(settings, client, kept, closing, transport, clock, keys, revoked, users, tokens)
            app.state.cloud = cloud
            if cloud.identities is not None:
                await cloud.identities.start()
            await cloud.ownership.start()
            cloud.users.start()
            cloud.runs.start()
            cloud.retention.start()
            cloud.tracking.start(cloud.repository, cloud.ownership.held)
            yield
            cloud.closing.set()
            await cloud.retention.stop()
            await cloud.runs.stop()
            await cloud.users.stop()
            await cloud.tracking.stop()
            if cloud.identities is not None:
                await cloud.identities.stop()
            await cloud.results.close()
            for thread in cloud.threads:
                thread.close()
            await cloud.ownership.stop()
            await cloud.store.close()

    throttle = Throttle(clock=clock)
    guards = guards_of(settings, throttle, "API", revoked, tokens.name, _note_other_protocol)
    app = make_app("StrataFL cloud", lifespan, routes=ROUTES, guards=guards)
    app.state.tokens, app.state.desk = tokens, Desk(app.state.closing)
    app.add_middleware(
        BodyLimit,
        tokens=(settings.common.api_token, settings.common.tier_token),
        limit=settings.max_spec_bytes,
        limits=dict.fromkeys(TIER_PATHS, JSON_BYTES),
        apart=(REQUESTS,),
        throttle=throttle,
        user_with=tokens.name,
    )
    app.add_middleware(ResponseHeaders, pages={"/ui": PAGE_POLICY})
    return app


async def _note_other_protocol(request: Request, error: OtherProtocol) -> None:
    cloud: Cloud = request.app.state.cloud
    await cloud.registry.others.note(request, error)


def build(
    settings: CloudSettings,
    client: httpx2.AsyncClient,
    store: Store,
    closing: asyncio.Event,
    transport: httpx2.AsyncBaseTransport | None = None,
    clock: Callable[[], float] = time.monotonic,
    keys: NodeKeys | None = None,
    revoked: Revoked | None = None,
    store_users: StoreUsers | None = None,
    tokens: Tokens | None = None,
) -> Cloud:
    """The cloud, wired together. It computes on one thread and evaluates on another."""
    metrics, folder = CloudMetrics(), settings.state_dir / "identity"
    revoked = Revoked(folder / "revoked.json") if revoked is None else revoked
    caller = Caller(client, settings.common.tier_token, settings.max_body_bytes, keys, revoked, metrics.exchanged)
    thread, evaluating = ComputeThread(), ComputeThread()
    installation = kept_id(settings.state_dir / "installation-id", "c-", durable=settings.common.fsync)
    ownership = Ownership(store, installation, settings.lease_s)
    store = FencedStore(store, ownership)
    signer = Signer(keys, next_count(folder / "starts")) if keys else None
    registry = Registry(store, caller, settings.node_networks, settings.ttl_s, awake(settings.ttl_s, clock))
    blobs = Blobs(settings.state_dir / "blobs", fsync=settings.common.fsync)
    tracking = tracking_of(settings.runs_dir, transport)
    on_event = to_all(metrics.on_event, log_run_event, tracking.on_event)
    repository = RunRepository(store, blobs, thread, settings.max_runs, on_event)
    results = ResultsFolders(settings.runs_dir, evaluating, settings.state_dir)
    services = CloudServices(
        ownership=ownership,
        repository=repository,
        registry=registry,
        edges=EdgeClient(registry, caller, Assigner(signer) if signer else None),
        experiments=ExperimentCache(settings.common.data_dir, settings.common.cache_dir),
        thread=thread,
        evaluator=Evaluator(repository, evaluating),
        results=results,
        shares=AgentShares(registry, settings.max_concurrent_runs),
        settle_s=settings.settle_s,
    )
    runs = RunManager(services, _quotas(settings, services, tokens or Tokens()), settings.max_concurrent_runs)
    metrics.watch(registry, runs, services.evaluator)
    fleet = Fleet(store, registry, runs.seats_by_agent, runs.edges_in_use, settings.ttl_s)
    events = EventFeeds(repository, closing, settings.max_event_clients)
    return Cloud(
        settings,
        store,
        ownership,
        registry,
        repository,
        events,
        runs,
        fleet,
        results,
        tracking,
        (thread, evaluating),
        metrics,
        closing,
        _identities(settings, store, keys, revoked, store_users) if keys else None,
        RevocationSigner(signer, revoked) if signer else None,
    )


def _quotas(settings: CloudSettings, services: CloudServices, tokens: Tokens) -> Quotas:
    repository, results = services.repository, services.results
    users = Users(repository.store, tokens, bool(settings.common.api_token), now)
    return Quotas(users, repository, results, settings.user_max_runs, settings.user_max_bytes)


def _identities(
    settings: CloudSettings, store: Store, keys: NodeKeys, revoked: Revoked, users: StoreUsers | None
) -> Identities:
    authority = authority_of(settings.authority_folder)
    tokens = partial(load_tokens, settings.authority_folder, authority.fingerprint)
    valid_s, hosts, join_dir = settings.certificate_s, settings.certificate_hosts, settings.join_dir
    return Identities(store, keys, authority, tokens, valid_s, hosts, revoked, users=users, join_dir=join_dir)
