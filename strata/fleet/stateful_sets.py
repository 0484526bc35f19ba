"""A fleet backend that scales StatefulSets of Kubernetes, those that its Role names and nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from strata.fleet.plan import Agent, Service
from strata.fleet.scale_api import Scale, ScaleChanged

ATTEMPTS = 5
"""Most attempts to set a scale that others keep changing."""


class Scales(Protocol):
    """Reads and sets scales, as `ScaleApi` does."""

    def read(self, name: str) -> Scale: ...
    def write(self, name: str, wanted: int, version: str) -> None: ...


class StatefulSets:
    """Starts and stops agents and edges as pods, by the replicas of their StatefulSets.

    A StatefulSet `strata-device` with 3 replicas has the pods `strata-device-0` to `strata-device-2`, each of which is
    the agent or edge of that name. Kubernetes starts them in this order and stops the last first. A pod that is started
    again has the claim that it had, if its StatefulSet makes claims.

    Args:
        api: reads and sets scales.
        prefix: the name of a StatefulSet is this and the name of its service.
        devices: by service, the devices that one of its agents hosts.
        edge_service: the service of edges.
    """

    def __init__(
        self,
        api: Scales,
        prefix: str,
        devices: Mapping[str, int],
        edge_service: str,
    ) -> None:
        self._api, self._prefix = api, prefix
        agents = {name: Service(each, newest_first=True) for name, each in devices.items()}
        self._services = {**agents, edge_service: Service(edges=True, newest_first=True)}

    def services(self) -> dict[str, Service]:
        """The services by name."""
        return dict(self._services)

    def agents(self) -> list[Agent]:
        """The pods that should run or still do: those that Kubernetes has not started yet, and those that are ending.

        Raises:
            ClusterError: the API server refused, or did not answer.
        """
        scales = {name: self._api.read(self._prefix + name) for name in self._services}
        return [
            Agent(f"{self._prefix}{name}-{number}", name, self._services[name].each, number)
            for name, scale in scales.items()
            for number in range(max(scale.wanted, scale.running))
        ]

    def check(self, n: int) -> None:
        """Checks nothing: what there is room for is for Kubernetes to say."""

    def start(self, service: str, devices: int) -> str:
        """Let the service have one pod more, and return its name.

        Raises:
            ClusterError: the API server refused, or did not answer.
        """
        name = self._prefix + service
        return f"{name}-{self._change(name, lambda wanted: wanted + 1)}"

    def stop(self, agents: Sequence[Agent]) -> None:
        """Let services have fewer pods: the last ones go, as far as they are among these. Kubernetes then ends them.

        Raises:
            ClusterError: the API server refused, or did not answer.
        """
        for service in {agent.service for agent in agents}:
            numbers = {agent.number for agent in agents if agent.service == service}
            self._change(self._prefix + service, partial(_without_last, gone=numbers))

    def _change(self, name: str, change: Callable[[int], int]) -> int:
        """Set the pods of a StatefulSet to a function of what they were, and return that.

        Kubernetes writes its own part of the same object at any time, so an attempt that came between is repeated.
        """
        for _ in range(ATTEMPTS - 1):
            with suppress(ScaleChanged):
                return self._try_to_change(name, change)
        return self._try_to_change(name, change)

    def _try_to_change(self, name: str, change: Callable[[int], int]) -> int:
        found = self._api.read(name)
        if (wanted := change(found.wanted)) != found.wanted:
            self._api.write(name, wanted, found.version)
        return found.wanted


def _without_last(wanted: int, gone: Collection[int]) -> int:
    """How many of the pods 0, 1, ... are left when the last ones go, as far as they have these numbers."""
    while wanted - 1 in gone:
        wanted -= 1
    return wanted
