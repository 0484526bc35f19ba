"""Which agents host the seats of which run while several train: each run keeps those that it got, until it ends.

It never affects a result, and it only divides work: an agent that hosts seats of two runs serves both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.nodes.registry import Registry


@dataclass
class AgentShares:
    """Divides the live agents.

    Attributes:
        registry: knows which agents are alive.
        n_runs: runs that train at a time, at most; one of it can have all agents.
    """

    registry: Registry
    n_runs: int = 1
    _owners: dict[str, str] = field(default_factory=dict)

    def of(self, run_id: str) -> list[AgentEntry]:
        """The live agents that host seats of a run: its own and, up to its share, free ones, which become its own."""
        live = self.registry.live_agents()
        if self.n_runs == 1:
            return live
        share = -(-len(live) // self.n_runs)
        have = Counter(self._owners.get(entry.agent) for entry in live)[run_id]
        for entry in live:
            if have < share and entry.agent not in self._owners:
                self._owners[entry.agent] = run_id
                have += 1
        return [entry for entry in live if self._owners.get(entry.agent) == run_id]

    def keep(self, run_id: str, agents: Collection[str]) -> None:
        """Give a run that goes on the agents that it had, as far as no other run has got them meanwhile."""
        self._owners = {**dict.fromkeys(agents, run_id), **self._owners}

    def end_run(self, run_id: str) -> None:
        """Free the agents of a run."""
        self._owners = {agent: run for agent, run in self._owners.items() if run != run_id}
