"""Starting and stopping a lasting local topology (`up`, `down`), and how many devices and edges it has (`scale`)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.core.bounds import LARGEST_DEVICES
from shared.core.errors import BadInput, Conflict, DeadlineExceeded, NotReady
from shared.runtime.memory import check_topology
from strata.launcher import home
from strata.launcher.signals import as_interrupt, status_of
from strata.options import (
    RUNS_DIR,
    AgentsPerGpuOption,
    Format,
    FormatOption,
    RunsDirOption,
    UrlOption,
    connect,
    say_of_another,
)

if TYPE_CHECKING:
    from shared.service.api.nodes import TopologyInfo
    from strata.api.client import Client
    from strata.fleet.reconciler import Fleet
    from strata.launcher.topology import Topology

_PORT = 8000
_LOOK_S = 0.5
_EDGE = "edge"
"""What `strata scale` calls the edges, as Compose does."""
_DOWN_S = 60.0


class Connecting(StrEnum):
    """How nodes are reached."""

    listen = "listen"
    up = "up"


def up(
    edges: Annotated[int, typer.Option(min=1, max=1000, help="Number of edges.")] = 2,
    devices: Annotated[
        int, typer.Option(min=1, max=LARGEST_DEVICES, help="Number of devices, spread over the agents.")
    ] = 10,
    agents: Annotated[int | None, typer.Option(min=1, help="Number of agent processes; default: one per core.")] = None,
    agents_per_gpu: AgentsPerGpuOption = 0,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the cloud; default: 8000 if it is free, else any free port."),
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps the state; default: a temporary folder.")
    ] = None,
    ready_s: Annotated[
        float, typer.Option(min=1, help="Longest wait, in seconds, until all edges and devices have registered.")
    ] = 120.0,
    secure: Annotated[
        bool, typer.Option("--secure", help="Nodes show certificates to each other, and users connect over TLS.")
    ] = False,
    connect: Annotated[
        Connecting, typer.Option(help="How edges and agents get requests: at a port, or dialling out, as behind NAT.")
    ] = Connecting.listen,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Start Redis, the cloud, edges and agents as local processes that run until Ctrl-C.

    Exit status 0 after Ctrl-C, SIGTERM or `strata down`, 129 if the terminal was lost (SIGHUP), 1 after an error.
    """
    from strata.fleet.processes import fleet_of
    from strata.launcher.gpus import agents_on_gpus
    from strata.launcher.topology import Topology
    from strata.output import stderr

    running = home.running()
    if running:
        raise Conflict(f"a topology is already running at {running.url}; `strata down` stops it")
    home.check()
    topology = Topology(
        edges=edges,
        devices=devices,
        agents=agents or agents_on_gpus(agents_per_gpu, devices),
        agents_per_gpu=agents_per_gpu,
        port=_port(port),
        folder=state_dir,
        runs_dir=runs_dir,
        secure=secure,
        connect=connect.value,
    )
    check_topology(edges, len(topology.devices_per_agent))
    with _until_stopped(), contextlib.ExitStack() as stack:
        with stderr().status(f"starting cloud, {edges} edges, {len(topology.devices_per_agent)} agents"):
            stack.enter_context(topology)
            topology.wait_ready(ready_s)
        stack.enter_context(home.announced(topology.url, (topology.folder / "logs").resolve(), topology.authority_file))
        fleet = stack.enter_context(fleet_of(topology, "strata-up"))
        _say_ready(topology, format)
        _keep(topology, fleet)


@contextlib.contextmanager
def _until_stopped() -> Iterator[None]:
    """Ctrl-C and SIGTERM are how a topology is meant to end: exit status 0. SIGHUP, of a lost terminal, is 129."""
    with as_interrupt():
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if status_of(interrupt) not in (128 + signal.SIGINT, 128 + signal.SIGTERM):
                raise


def _port(requested: int | None) -> int:
    """The requested port; without one, 8000 if it is free, else 0 (any free port)."""
    from strata.launcher.environment import listening, loopback

    if requested is not None:
        return requested
    try:
        listening(loopback(), _PORT).close()
    except BadInput:
        return 0
    return _PORT


def _say_ready(topology: Topology, format: Format) -> None:
    from rich.text import Text

    from strata.output import print_json, stdout

    agents, dashboard = len(topology.devices_per_agent), f"{topology.url}/ui/"
    if format is Format.json:
        ready = {"url": topology.url, "dashboard": dashboard, "pid": os.getpid(), "edges": len(topology.edge_names)}
        ready |= {"agents": agents, "devices": sum(topology.devices_per_agent), "folder": str(topology.folder)}
        print_json(ready, indent=None)
        return
    console = stdout()
    words = f"{len(topology.edge_names)} edges, {agents} agents with {sum(topology.devices_per_agent)} devices"
    console.print(Text("ready", style="green"), f"at {topology.url}: {words}", highlight=False)
    console.print(f"dashboard: {dashboard}", highlight=False, soft_wrap=True)
    console.print(f"logs in {topology.folder / 'logs'}; Ctrl-C stops everything", highlight=False, soft_wrap=True)


def _keep(topology: Topology, fleet: Fleet) -> None:
    """Keep running until interrupted. A lost edge or agent is started again; losing the cloud or Redis is an error."""
    from strata.launcher.upkeep import Upkeep
    from strata.output import print_error

    upkeep = Upkeep(topology, print_error)
    while True:
        upkeep.look()
        topology.trim_logs()
        fleet.settle()
        time.sleep(_LOOK_S)


def down(format: FormatOption = Format.table) -> None:
    """Stop the topology that `strata up` started here."""
    from strata.output import print_json, stdout

    running = home.running()
    if running is not None:
        try:
            os.kill(running.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise Conflict(f"process {running.pid} of the topology belongs to another user, who can stop it") from None
        deadline = time.monotonic() + _DOWN_S
        while home.running() is not None or _alive(running.pid):
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"process {running.pid} is still running after {_DOWN_S:g} s")
            time.sleep(0.1)
    if format is Format.json:
        print_json({"stopped": running is not None, "url": running.url if running else None}, indent=None)
    elif running is not None:
        stdout().print(f"stopped the topology at {running.url}", highlight=False)
    else:
        stdout().print("no `strata up` is running here; to stop containers: docker compose down -v")
        say_of_another(None)


def _alive(pid: int) -> bool:
    """Whether the process with this id runs (a zombie has ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- scale


def scale(
    devices: Annotated[
        list[str],
        typer.Argument(
            metavar="N | SERVICE=N...",
            help="The number of devices, such as 12, or of each service, such as device=12; of edges, such as edge=10.",
        ),
    ],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the number is reached or the fleet reports why it cannot be.")
    ] = False,
    limit_s: Annotated[float, typer.Option(min=1, help="Longest wait, in seconds.")] = 600.0,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Change the number of devices or edges of a running topology.

    The fleet (a part of `strata up`, `strata run` and the core's job on Slurm, a container in Compose, a pod in
    Kubernetes) starts or stops agents and edges to match. Edges that a run needs stay until it ends. Exit status 0 if
    the cloud accepted the number; with --wait, if it was reached.
    """
    from strata.output import print_json, stdout

    number, edges = _numbers(devices)
    with connect(url) as client:
        info = client.scale(number, edges)
        if wait:
            info = _reached(client, _wanted(info), limit_s)
    if format is Format.json:
        found = {"wanted": _wanted(info), "present": _present(info), "n_devices": info.n_devices, "notes": info.notes}
        print_json(found, indent=None)
        return
    for line in (_progress(info), *(f"note: {note}" for note in info.notes)):
        stdout().print(line, highlight=False, soft_wrap=True, markup=False)


def _numbers(words: list[str]) -> tuple[int | dict[str, int] | None, int | None]:
    """The requested devices and edges, from `12`, `device=4 device_slow=2` or `device=20 edge=10`."""
    if len(words) == 1 and words[0].isdecimal():
        return int(words[0]), None
    pairs = [word.partition("=") for word in words]
    if not all(service and number.isdecimal() for service, _, number in pairs):
        raise typer.BadParameter(f"expected a number, or service=number for each service, not {' '.join(words)!r}")
    found = {service: int(number) for service, _, number in pairs}
    for plural, one in (("edges", _EDGE), ("devices", "device")):
        if plural in found:
            raise typer.BadParameter(f"the service of {plural} is {one}: write {one}={found[plural]}")
    edges = found.pop(_EDGE, None)
    return found or None, edges


def _wanted(info: TopologyInfo) -> dict[str, int]:
    """The wanted numbers by service, that of edges among them."""
    return info.wanted if info.wanted_edges is None else {**info.wanted, _EDGE: info.wanted_edges}


def _present(info: TopologyInfo) -> dict[str, int]:
    """Of the services of which a number is wanted, or that have devices: how many are present."""
    return info.present if info.wanted_edges is None else {**info.present, _EDGE: info.present_edges or 0}


def _running(info: TopologyInfo) -> dict[str, int]:
    """By service, how many the fleet runs, registered or not."""
    if info.fleet is None:
        return {}
    return {**info.fleet.running, _EDGE: info.fleet.running_edges or 0}


def _reached(client: Client, wanted: Mapping[str, int], limit_s: float) -> TopologyInfo:
    """Wait until exactly the wanted agents of the fleet run, printing the progress, and return the topology.

    Raises:
        NotReady: the fleet reported why the number cannot be reached, or is not connected.
        Conflict: another user has requested another number meanwhile.
        DeadlineExceeded: the number was not reached in time; the message gives the progress.
    """
    from strata.output import stderr

    deadline, shown = time.monotonic() + limit_s, ""
    while True:
        info = client.topology()
        progress = _progress(info)
        if progress != shown:
            stderr().print(progress, highlight=False, soft_wrap=True)
            shown = progress
        if _wanted(info) != wanted:
            raise Conflict(f"another number has been requested meanwhile: {progress}")
        if info.fleet is None:
            raise NotReady("the fleet is no longer connected")
        present, running = _present(info), _running(info)
        if all(present.get(name) == running.get(name, 0) == n for name, n in wanted.items()):
            return info
        told = (info.fleet.wanted, info.fleet.wanted_edges) == (info.wanted, info.wanted_edges)
        if info.fleet.error and told:
            raise NotReady(f"{progress}: {info.fleet.error}")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"after {limit_s:g} s {progress}")
        time.sleep(_LOOK_S)


def _progress(info: TopologyInfo) -> str:
    present = _present(info)
    parts = [f"{service}: {present.get(service, 0)} of {number}" for service, number in _wanted(info).items()]
    leaving = f"; leaving once not needed: {', '.join(info.fleet.leaving)}" if info.fleet and info.fleet.leaving else ""
    return ", ".join(parts) + leaving
