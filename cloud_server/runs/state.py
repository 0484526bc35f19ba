"""What the course of a run works with: the cloud's tools, and where the run stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloud_server.nodes.registry import Registry
from cloud_server.runs.edge_client import EdgeClient
from cloud_server.runs.evaluation import Evaluator
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.repository import Checkpoint, RunRepository
from cloud_server.runs.results_writer import ResultsFolder
from shared.federation.experiment import Experiment, ExperimentCache
from shared.runtime.worker import Worker


@dataclass
class CloudServices:
    """What the courses of a cloud share."""

    repository: RunRepository
    registry: Registry
    edges: EdgeClient
    experiments: ExperimentCache
    worker: Worker
    evaluator: Evaluator
    results: ResultsFolder
    settle_s: float


@dataclass
class RunState:
    """Where a run stands: its lab, who sits where, its last committed state.

    Attributes:
        guard: digest of the committed state, which the next commit expects to find.
    """

    experiment: Experiment
    placement: PlacementManager
    checkpoint: Checkpoint[Any]
    expected_digest: str
