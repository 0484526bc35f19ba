"""What a run would be if it began now, with the agents and edges that are connected: nothing is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cloud_server.runs.agents_of_run import resolved, whole_plan
from cloud_server.runs.placement import Placement, PlacementManager
from cloud_server.runs.plugin_checks import with_plugins
from cloud_server.runs.run_state import CloudServices
from shared.core.errors import TooMany
from shared.federation.expected_times import ExpectedTimes
from shared.federation.spec_parser import parse_run_spec
from shared.run_records.plans import RunPlan
from shared.spec.experiment import ExperimentSpec

MOST = 8
"""Plans that are made or wait at a time: the thread that makes them also adds up updates."""
MOST_OF_USER = 2
"""Those of them that one user may ask for, so that others' are made too."""


class Planner:
    """Makes plans, one after another.

    Args:
        services: of the cloud.
    """

    def __init__(self, services: CloudServices) -> None:
        self.services = services
        self._n_by_user = Counter[str | None]()

    async def plan(self, raw: Mapping[str, Any], user: str | None = None) -> RunPlan:
        """The plan of a run of a spec, for a user or the administrator (None).

        Raises:
            BadInput: the spec, its data or its model are wrong; names field and cause.
            TooMany: `MOST` plans are being made, or `MOST_OF_USER` of that user.
        """
        spec = parse_run_spec(dict(raw)).experiment
        n, own = self._n_by_user.total(), self._n_by_user[user]
        if n >= MOST:
            raise TooMany(f"{n} plans are being made, the limit is {MOST}")
        if user is not None and own >= MOST_OF_USER:
            raise TooMany(f"{own} plans of {user} are being made, the limit of a user is {MOST_OF_USER}")
        self._n_by_user[user] += 1
        try:
            return await self._made(spec)
        finally:
            self._n_by_user[user] -= 1
            self._n_by_user += Counter()  # without those that are none

    async def _made(self, asked: ExperimentSpec) -> RunPlan:
        """The plan; what the registry knows is read here, since it changes while the thread computes."""
        registry, thread = self.services.registry, self.services.thread
        agents, n_edges = with_plugins(registry.live_agents(), asked), len(registry.open_edges())
        experiment = await thread.run(self.services.experiments.of, resolved(asked, agents, n_edges))
        if not agents or not registry.open_edges():  # of the devices that the spec names
            return await thread.run(ExpectedTimes(experiment, experiment.spec).plan)
        nobody, reseat_after_s = Placement(agents={}, edges={}), asked.timeouts.reseat_after_s
        manager = PlacementManager(experiment.population, registry, nobody, reseat_after_s, lambda: agents)
        manager.seat_all(experiment.spec.num_devices or 1)
        return await thread.run(whole_plan, experiment, asked, manager)
