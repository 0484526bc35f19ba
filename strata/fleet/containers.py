"""Containers of one Compose project as a fleet's hands: those of its own project and services, and no other."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import docker
import requests
from docker.errors import DockerException

from shared.core.errors import NotReady, StrataError
from strata.fleet.container_copy import (
    HASH,
    ONE_OFF,
    PROJECT,
    SERVICE,
    endpoints_of,
    environment_of,
    name_of,
    number_of,
    sibling_of,
)
from strata.fleet.plan import Agent, Service

RUNS = frozenset({"running", "restarting", "paused"})
ENGINE_S = 60.0
AT_ONCE = 8


class EngineError(StrataError):
    """The container engine refused, or does not answer."""

    status, code = 502, "engine"


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the engine as errors of ours."""
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        hint = "; may this user read the engine's socket? (DOCKER_GID)" if "Permission denied" in str(error) else ""
        raise EngineError(f"the container engine: {error}{hint}"[:1500]) from error


class Containers:
    """Starts and stops agents as containers of the project that this process' own container belongs to.

    A container that was stopped is started again, with its volume, hence with its id and states; else a sibling is
    copied. Nothing is removed: `docker compose down` does that.

    Args:
        services: that may be scaled.
        grace_s: how long a container may take to end before it is killed.
        engine: a low-level client of the engine; None = one for the socket that the environment names.
        own: id of this process' container; None = its host name, as the engine sets it.
    """

    def __init__(
        self, services: Sequence[str], *, grace_s: float = 10.0, engine: Any = None, own: str | None = None
    ) -> None:
        self._services, self._grace_s = tuple(services), grace_s
        self._engine, self._own = engine, own or socket.gethostname()
        self._project = ""
        self._known: dict[str, Mapping[str, Any]] = {}  # by id; what is looked at of a container never changes
        self._each = dict.fromkeys(self._services, 1)

    @property
    def _api(self) -> Any:
        if self._engine is None:
            self._engine = docker.APIClient(version="auto", timeout=ENGINE_S)
        return self._engine

    # ---- what is there

    def services(self) -> dict[str, Service]:
        """The services, each with the devices that a container of it hosts."""
        return {name: Service(each) for name, each in self._each.items()}

    def agents(self) -> list[Agent]:
        """The containers that run, as agents.

        Raises:
            NotReady: the project is not known.
            EngineError: the engine did not answer.
        """
        with _told():
            found = {name: self._listed(name) for name in self._services}
            ids = {row["Id"] for rows in found.values() for row in rows}
            self._known = {key: value for key, value in self._known.items() if key in ids}
            for name, rows in found.items():
                if rows:
                    self._each[name] = _devices(self._inspected(_newest(rows)["Id"]))
            return [self._agent(row, name) for name, rows in found.items() for row in rows if row["State"] in RUNS]

    def _listed(self, service: str) -> list[dict[str, Any]]:
        """The containers of a service, running or not, by number; none that `docker compose run` made."""
        labels = [f"{PROJECT}={self._own_project()}", f"{SERVICE}={service}", f"{ONE_OFF}=False"]
        rows: list[dict[str, Any]] = self._api.containers(all=True, filters={"label": labels})
        return sorted(rows, key=lambda row: number_of(row["Labels"]))

    def _own_project(self) -> str:
        if not self._project:
            labels = self._inspect(self._own)["Config"].get("Labels") or {}
            self._project = labels.get(PROJECT, "")
        if not self._project:
            raise NotReady("the fleet runs in no container of a Compose project, so that nothing is its own to scale")
        return self._project

    def _inspect(self, container: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._api.inspect_container(container)
        return found

    def _inspected(self, container: str) -> Mapping[str, Any]:
        if container not in self._known:
            self._known[container] = self._inspect(container)
        return self._known[container]

    def _agent(self, row: Mapping[str, Any], service: str) -> Agent:
        found = self._inspected(row["Id"])
        return Agent(_name(found), service, _devices(found), number_of(row["Labels"]))

    # ---- coming and going

    def check(self, n: int) -> None:
        """Nothing to see: what a container may take is the engine's to limit, and its machine may be another."""

    def start(self, service: str, devices: int) -> str:
        """Start the first stopped container that is as the newest is, else make one; answers with its agent's name.

        Raises:
            NotReady: there is none to copy.
            EngineError: the engine refused.
        """
        with _told():
            rows = self._listed(service)
            if not rows:
                raise NotReady(
                    f"there is no container of {service} to copy: `docker compose up -d {service}` makes one"
                )
            newest = _newest(rows)
            stopped = [row["Id"] for row in rows if row["State"] not in RUNS and _alike(row, newest)]
            container = stopped[0] if stopped else self._copy(newest["Id"], number_of(rows[-1]["Labels"]) + 1)
            self._api.start(container)
            return _name(self._inspected(container))

    def _copy(self, container: str, number: int) -> str:
        """Make a sibling of a container; answers with its id."""
        found = self._inspect(container)
        own = name_of(found, number)
        networks = endpoints_of(found, own)
        first = dict(list(networks.items())[:1])
        body = sibling_of(found, number, self._image(found)) | {"NetworkingConfig": {"EndpointsConfig": first}}
        made: str = self._api.create_container_from_config(body, own)["Id"]
        for name in networks.keys() - first.keys():
            self._api.connect_container_to_network(made, name, aliases=networks[name]["Aliases"])
        return made

    def _image(self, found: Mapping[str, Any]) -> str:
        """The sibling's image by name, or by its id where the name has come to mean another."""
        name: str = found["Config"]["Image"]
        try:
            same = self._api.inspect_image(name)["Id"] == found["Image"]
        except docker.errors.ImageNotFound:
            same = False
        return name if same else str(found["Image"])

    def stop(self, agents: Sequence[Agent]) -> None:
        """SIGTERM to all at once, SIGKILL after the grace; the containers stay, with what they keep.

        Raises:
            EngineError: some could not be stopped.
        """
        numbers = {(agent.service, agent.number) for agent in agents}
        with _told(), ThreadPoolExecutor(AT_ONCE) as pool:
            rows = [(name, row) for name in self._services for row in self._listed(name)]
            ids = [row["Id"] for name, row in rows if (name, number_of(row["Labels"])) in numbers]
            for ended in [pool.submit(self._api.stop, container, timeout=int(self._grace_s)) for container in ids]:
                ended.result()


def _name(found: Mapping[str, Any]) -> str:
    """Under which the agent of a container registers."""
    return str(environment_of(found).get("AGENT_NAME") or found["Config"]["Hostname"])


def _devices(found: Mapping[str, Any]) -> int:
    """How many devices it hosts."""
    text = environment_of(found).get("AGENT_DEVICES", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else 1


def _newest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(rows, key=lambda row: (row["Created"], number_of(row["Labels"])))


def _alike(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two containers are of one configuration and image."""
    return bool(row["Labels"].get(HASH) == other["Labels"].get(HASH) and row["ImageID"] == other["ImageID"])
