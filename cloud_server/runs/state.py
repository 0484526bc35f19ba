"""What the course of a run works with: the cloud's tools, and where the run stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloud_server.nodes.registry import Registry
from cloud_server.runs.edge_client import Edges
from cloud_server.runs.evaluation import Judge
from cloud_server.runs.placement import Table
from cloud_server.runs.repository import Archive, Committed
from cloud_server.runs.results_writer import ResultsFolder
from shared.federation.experiment import Lab, Labs
from shared.runtime.worker import Worker


@dataclass
class Tools:
    """What the courses of a cloud share."""

    archive: Archive
    registry: Registry
    edges: Edges
    labs: Labs
    worker: Worker
    judge: Judge
    results: ResultsFolder
    settle_s: float


@dataclass
class Standing:
    """Where a run stands: its lab, who sits where, its last committed state.

    Attributes:
        guard: digest of the committed state, which the next commit expects to find.
    """

    lab: Lab
    table: Table
    committed: Committed[Any]
    guard: str
