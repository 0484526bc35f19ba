"""A fleet backend that starts and stops containers, those of its own Compose project and services only."""

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
    copy_of,
    endpoints_of,
    environment_of,
    name_of,
    number_of,
)
from strata.fleet.plan import EDGES, Agent, Service

RUNS = frozenset({"running", "restarting", "paused"})
ENGINE_S = 60.0
AT_ONCE = 8


class EngineError(StrataError):
    """The container engine refused a request or does not answer."""

    status, code = 502, "engine"


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn errors of the engine's client into `EngineError`."""
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        hint = "; may this user read the engine's socket? (DOCKER_GID)" if "Permission denied" in str(error) else ""
        raise EngineError(f"the container engine: {error}{hint}"[:1500]) from error


class Containers:
    """Starts and stops agents and edges as containers of the Compose project to which this process' container belongs.

    A stopped container is started again with its volume, hence with its id and states; if there is none, a running one
    is copied. No container is removed: `docker compose down` does that.

    Args:
        services: the services of devices that may be scaled.
        edge_service: that of edges; None = edges are not scaled.
        grace_s: seconds that a container may take to end before it is killed.
        engine: a low-level client of the engine; None means one for the socket that the environment names.
        own: id of this process' container; None means its host name, which the engine sets to the id.
    """

    def __init__(
        self,
        services: Sequence[str],
        edge_service: str | None = None,
        *,
        grace_s: float = 10.0,
        engine: Any = None,
        own: str | None = None,
    ) -> None:
        self._edge_service, self._grace_s = edge_service, grace_s
        self._services = (*services, *([edge_service] if edge_service else []))
        self._engine, self._own = engine, own or socket.gethostname()
        self._project = ""
        self._known: dict[str, Mapping[str, Any]] = {}  # by id; the inspected fields of a container never change
        self._each = dict.fromkeys(self._services, 1)

    @property
    def _api(self) -> Any:
        if self._engine is None:
            self._engine = docker.APIClient(version="auto", timeout=ENGINE_S)
        return self._engine

    # ---- the running containers

    def services(self) -> dict[str, Service]:
        """The services by name, with the number of devices that one of their containers hosts."""
        return {name: EDGES if name == self._edge_service else Service(each) for name, each in self._each.items()}

    def agents(self) -> list[Agent]:
        """The running containers, as agents.

        Raises:
            NotReady: the Compose project is not known.
            EngineError: the engine did not answer.
        """
        with _engine_errors():
            found = {name: self._listed(name) for name in self._services}
            ids = {row["Id"] for rows in found.values() for row in rows}
            self._known = {key: value for key, value in self._known.items() if key in ids}
            for name, rows in found.items():
                if rows:
                    self._each[name] = _devices(self._inspected(_newest(rows)["Id"]))
            return [self._agent(row, name) for name, rows in found.items() for row in rows if row["State"] in RUNS]

    def _listed(self, service: str) -> list[dict[str, Any]]:
        """The containers of a service by number, running or not, without those of `docker compose run`."""
        labels = [f"{PROJECT}={self._own_project()}", f"{SERVICE}={service}", f"{ONE_OFF}=False"]
        rows: list[dict[str, Any]] = self._api.containers(all=True, filters={"label": labels})
        return sorted(rows, key=lambda row: number_of(row["Labels"]))

    def _own_project(self) -> str:
        if not self._project:
            labels = self._inspect(self._own)["Config"].get("Labels") or {}
            self._project = labels.get(PROJECT, "")
        if not self._project:
            raise NotReady("the fleet can only scale a Compose project if it runs in a container of that project")
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

    # ---- starting and stopping

    def check(self, n: int) -> None:
        """Checks nothing: the engine limits containers, and may run on another machine."""

    def start(self, service: str, devices: int) -> str:
        """Start the first stopped container configured like the newest one, else a copy; returns the agent's name.

        Raises:
            NotReady: the service has no container to copy.
            EngineError: the engine refused.
        """
        with _engine_errors():
            rows = self._listed(service)
            if not rows:
                raise NotReady(
                    f"there is no container of {service} to copy: `docker compose up -d {service}` creates one"
                )
            newest = _newest(rows)
            stopped = [row["Id"] for row in rows if row["State"] not in RUNS and _alike(row, newest)]
            container = stopped[0] if stopped else self._copy(newest["Id"], number_of(rows[-1]["Labels"]) + 1)
            self._api.start(container)
            return _name(self._inspected(container))

    def _copy(self, container: str, number: int) -> str:
        """Create a copy of a container and return its id."""
        found = self._inspect(container)
        own = name_of(found, number)
        networks = endpoints_of(found, own)
        first = dict(list(networks.items())[:1])
        body = copy_of(found, number, self._image(found)) | {"NetworkingConfig": {"EndpointsConfig": first}}
        made: str = self._api.create_container_from_config(body, own)["Id"]
        for name in networks.keys() - first.keys():
            self._api.connect_container_to_network(made, name, aliases=networks[name]["Aliases"])
        return made

    def _image(self, found: Mapping[str, Any]) -> str:
        """The container's image by name, or by id if the name now refers to another image."""
        name: str = found["Config"]["Image"]
        try:
            same = self._api.inspect_image(name)["Id"] == found["Image"]
        except docker.errors.ImageNotFound:
            same = False
        return name if same else str(found["Image"])

    def stop(self, agents: Sequence[Agent]) -> None:
        """Send SIGTERM to all at once, and SIGKILL after the grace period; the containers and their volumes stay.

        Raises:
            EngineError: a container could not be stopped.
        """
        numbers = {(agent.service, agent.number) for agent in agents}
        with _engine_errors(), ThreadPoolExecutor(AT_ONCE) as pool:
            rows = [(name, row) for name in self._services for row in self._listed(name)]
            ids = [row["Id"] for name, row in rows if (name, number_of(row["Labels"])) in numbers]
            for ended in [pool.submit(self._api.stop, container, timeout=int(self._grace_s)) for container in ids]:
                ended.result()


def _name(found: Mapping[str, Any]) -> str:
    """The name under which the agent or edge of a container registers."""
    given = environment_of(found)
    return str(given.get("AGENT_NAME") or given.get("EDGE_NAME") or found["Config"]["Hostname"])


def _devices(found: Mapping[str, Any]) -> int:
    """The number of devices that a container hosts; an edge counts as one."""
    text = environment_of(found).get("AGENT_DEVICES", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else 1


def _newest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(rows, key=lambda row: (row["Created"], number_of(row["Labels"])))


def _alike(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two containers have the same configuration and image."""
    return bool(row["Labels"].get(HASH) == other["Labels"].get(HASH) and row["ImageID"] == other["ImageID"])
