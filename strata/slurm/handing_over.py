"""Pausing runs while a job reaches its time limit and its next one begins, so that no task is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from shared.core.errors import StrataError
from shared.service.api.nodes import TopologyInfo
from strata.api.client import Client
from strata.slurm.deployment import Deployment, HandingOver

_ACTIVE = frozenset({"starting", "running", "pausing"})
_AWAY = frozenset({"lost", "suspect"})
_REFUSED = (404, 409)
"""Answers of the cloud that another try would not change: the run was deleted, or may not be resumed as it is."""
_LOOK_S = 0.5


class Pauses:
    """Pauses the runs of a cloud while jobs hand over, and resumes them when all are back.

    Which runs were paused is noted in the deployment's folder, so that the core's next job resumes them.

    Args:
        deployment: whose jobs they are.
        client: of the cloud.
        say: gets what a user may want to know.
        clock: Unix seconds, as they are noted in files.
    """

    def __init__(
        self,
        deployment: Deployment,
        client: Client,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._deployment, self._client, self._say, self._clock = deployment, client, say, clock
        self._asked: set[str] = set()
        self._began = clock()

    def look(self) -> None:
        """Look once; errors of the cloud are said, and the next look tries again."""
        try:
            self._look()
        except StrataError as error:
            self._say(f"runs cannot be paused or resumed now: {error.detail}")

    def _look(self) -> None:
        tasks, paused = self._deployment.all_handing_over(), self._deployment.paused()
        if any(task.state == "leaving" for task in tasks.values()) and paused is None:
            self._pause()
        elif paused is not None and self._all_back(tasks):
            for run in paused:
                self._go_on(run)
            for task in tasks:
                self._deployment.handed_over(task)
            self._deployment.note_paused(None)
            self._asked.clear()

    def _go_on(self, run: str) -> None:
        """Resume a run, unless it is gone or the cloud refuses: the others go on all the same.

        Raises:
            StrataError: the cloud does not answer.
        """
        try:
            if self._client.run(run).status == "paused":
                self._client.resume(run)
                self._say(f"run {run} goes on")
        except StrataError as error:
            if error.status not in _REFUSED:
                raise
            self._say(f"run {run} does not go on: {error.detail}")

    def _pause(self) -> bool:
        """Ask all active runs to pause, and note them once none trains; returns whether none does."""
        active = [run.run for run in self._client.runs(limit=1000) if run.status in _ACTIVE]
        for run in active:
            if run not in self._asked:
                self._client.pause(run)
                self._say(f"run {run} pauses while jobs reach their time limit")
                self._asked.add(run)
        if not active:
            self._deployment.note_paused(tuple(sorted(self._asked)))
        return not active

    def pause_until(self, deadline: float, ended: Callable[[], bool]) -> None:
        """Pause all active runs, and wait until none trains, at most until a time (monotonic) or an end.

        A run that still trains then goes on from its last round, as after any end of a cloud.
        """
        while time.monotonic() < deadline and not ended():
            try:
                if self._deployment.paused() is not None or self._pause():
                    return
            except StrataError as error:
                self._say(f"runs cannot be paused: {error.detail}")
            time.sleep(_LOOK_S)

    def _all_back(self, tasks: Mapping[str, HandingOver]) -> bool:
        """Whether every node is connected again, or has been waited for long enough."""
        here, limit_s = nodes_of(self._client.topology()), self._deployment.options.return_s
        missing = {name for name, state in here.items() if state in _AWAY}
        for task, found in tasks.items():
            if found.state == "leaving":
                kind, _, index = task.rpartition("-")
                missing.update(self._deployment.options.names(kind, int(index)))
        since = self._clock() - max([self._began, *(task.since for task in tasks.values())])
        if missing and since > limit_s:
            self._say(f"{', '.join(sorted(missing))} did not come back within {limit_s:g} s: runs go on without")
        return not missing or since > limit_s


def nodes_of(info: TopologyInfo) -> dict[str, str]:
    """The states of edges and agents by name."""
    edges = {edge.name: edge.state for edge in info.edges}
    return {**edges, **{agent.name: agent.state for agent in info.agents}}
