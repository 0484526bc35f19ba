"""What a run is executed with: the cloud's services, and the state of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cloud_server.nodes.registry import Registry
from cloud_server.ownership import Ownership
from cloud_server.runs.agent_shares import AgentShares
from cloud_server.runs.checkpoint import Checkpoint
from cloud_server.runs.edge_client import EdgeClient
from cloud_server.runs.evaluation import Evaluator
from cloud_server.runs.events import RunEvent, profile_events
from cloud_server.runs.flights import Flights
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.repository import RunRepository
from cloud_server.runs.results_writer import ResultsFolders
from cloud_server.runs.store_watch import StoreWatch
from shared.federation.experiment import Experiment, ExperimentCache
from shared.run_records.rounds import RoundDetail
from shared.runtime.compute_thread import ComputeThread


@dataclass
class CloudServices:
    """What all runs of a cloud share. `settle_s` is explained in `CloudSettings`."""

    ownership: Ownership
    repository: RunRepository
    registry: Registry
    edges: EdgeClient
    experiments: ExperimentCache
    thread: ComputeThread
    evaluator: Evaluator
    results: ResultsFolders
    shares: AgentShares
    settle_s: float
    store_watch: StoreWatch = field(init=False)

    def __post_init__(self) -> None:
        self.store_watch = StoreWatch(self.repository.store)


@dataclass
class RunState:
    """The state of a run that is executed: its experiment, its placement, its last checkpoint.

    Attributes:
        expected_digest: digest of the checkpoint, which the next commit must find in the store.
        flights: the orders in flight where the cloud does not wait for all edges.
    """

    experiment: Experiment
    placement: PlacementManager
    checkpoint: Checkpoint[Any]
    expected_digest: str
    flights: Flights = field(default_factory=Flights)

    def keep_profiles(self, detail: RoundDetail) -> list[RunEvent]:
        """Keep the profiles that seats had in the round; events of those that changed with their agents' profiles."""
        if not self.experiment.spec.devices.by_agent:
            return []
        before = self.placement.placement.profiles
        seen = {row.seat: row.profile for row in detail.seats if row.profile is not None}
        self.placement.placement = self.placement.placement.replace(profiles={**before, **seen})
        return profile_events(detail.round_no, before, seen)
