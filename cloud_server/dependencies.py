"""The cloud of a request, as a named dependency."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request

from cloud_server.metrics import CloudMetrics
from cloud_server.nodes.fleet import Fleet
from cloud_server.nodes.identities import Identities
from cloud_server.nodes.registry import Registry
from cloud_server.ownership import Ownership
from cloud_server.runs.event_feed import EventFeeds
from cloud_server.runs.manager import RunManager
from cloud_server.runs.repository import RunRepository
from cloud_server.runs.results_writer import ResultsFolders
from cloud_server.runs.retention import Retention
from cloud_server.runs.store_watch import StoreWatch
from cloud_server.runs.tracking import Tracking
from cloud_server.runs.user_requests import UserRequests
from cloud_server.settings import CloudSettings
from cloud_server.users.tokens import Users
from shared.identity.revocations import RevocationSigner
from shared.identity.signing import Issue
from shared.runtime.compute_thread import ComputeThread
from shared.service.auth import user_of
from shared.storage.key_value import Store


@dataclass
class Cloud:
    """The objects that the cloud owns while it runs.

    Attributes:
        threads: the computing thread and the evaluating thread.
        closing: set when the cloud shuts down; ends the streams of events.
        identities: of nodes; None where nodes show no certificates.
        revocations: signs which certificates have been revoked; None there too.
    """

    settings: CloudSettings
    store: Store
    ownership: Ownership
    registry: Registry
    repository: RunRepository
    events: EventFeeds
    runs: RunManager
    fleet: Fleet
    results: ResultsFolders
    tracking: Tracking
    threads: tuple[ComputeThread, ...]
    metrics: CloudMetrics
    closing: asyncio.Event
    identities: Identities | None = None
    revocations: RevocationSigner | None = None

    @property
    def users(self) -> Users:
        """The users beside the administrator."""
        return self.runs.quotas.users

    @cached_property
    def retention(self) -> Retention:
        """Removes ended runs that are kept no longer."""
        return Retention(self.runs, self.settings.keep_days, self.settings.keep_bytes)

    def requests_of(self, user: str | None) -> UserRequests:
        """What a user, or the administrator (None), requests of runs."""
        return UserRequests(self.runs, user)

    @property
    def signed_by(self) -> str:
        """The key with which nodes check what the cloud has signed; empty where it signs nothing."""
        return self.revocations.public_key if self.revocations else ""

    @property
    def store_watch(self) -> StoreWatch:
        """Looks at what Redis says of itself."""
        return self.runs.services.store_watch

    def revoked_since(self, known: Issue) -> str:
        """The list of revoked certificates, if it is newer than the one that is known."""
        return self.revocations.newer_than(known) if self.revocations else ""


async def cloud_of(request: Request) -> Cloud:
    """The cloud of the app to which a request belongs; asynchronous, so that no thread is needed for it."""
    found: Cloud = request.app.state.cloud
    return found


async def requests_of(request: Request) -> UserRequests:
    """What the caller requests of runs."""
    cloud: Cloud = request.app.state.cloud
    return cloud.requests_of(user_of(request))


async def check_owner(request: Request) -> None:
    """Refuse a request that changes something while another cloud owns the data.

    Raises:
        StandingBy: another cloud does; names it.
    """
    if request.method != "GET":
        cloud: Cloud = request.app.state.cloud
        cloud.ownership.guard()


OWNER_WRITES = Depends(check_owner)
"""The dependency of routers whose routes change something."""
TheCloud = Annotated[Cloud, Depends(cloud_of)]
Requests = Annotated[UserRequests, Depends(requests_of)]
