"""The cloud of a request, as a named dependency."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from cloud_server.metrics import CloudMetrics
from cloud_server.nodes.fleet import Fleet
from cloud_server.nodes.registry import Registry
from cloud_server.runs.manager import RunManager
from cloud_server.runs.repository import RunRepository
from cloud_server.runs.results_writer import ResultsFolder
from cloud_server.runs.tracking import Tracking
from cloud_server.settings import CloudSettings
from shared.runtime.compute_thread import ComputeThread
from shared.storage.key_value import Store


@dataclass
class Cloud:
    """The objects that the cloud owns while it runs.

    Attributes:
        threads: the computing thread and the evaluating thread.
        closing: set when the cloud shuts down; ends the streams of events.
    """

    settings: CloudSettings
    store: Store
    registry: Registry
    repository: RunRepository
    runs: RunManager
    fleet: Fleet
    results: ResultsFolder
    tracking: Tracking
    threads: tuple[ComputeThread, ...]
    metrics: CloudMetrics
    closing: asyncio.Event


async def cloud_of(request: Request) -> Cloud:
    """The cloud of the app to which a request belongs; asynchronous, so that no thread is needed for it."""
    found: Cloud = request.app.state.cloud
    return found


TheCloud = Annotated[Cloud, Depends(cloud_of)]
