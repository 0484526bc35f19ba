"""A local topology that stays: `up` and `down`; and `scale`, there or in containers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.core.errors import BadInput, Conflict, DeadlineExceeded, NotReady
from strata.launcher import home
from strata.launcher.signals import as_interrupt
from strata.options import RUNS_DIR, Format, FormatOption, RunsDirOption, UrlOption, connect

if TYPE_CHECKING:
    from shared.service.api.nodes import TopologyInfo
    from strata.api.client import Client
    from strata.fleet.reconciler import Fleet
    from strata.launcher.topology import Topology

_PORT = 8000
_LOOK_S = 0.5
_DOWN_S = 60.0


def up(
    edges: Annotated[int, typer.Option(min=1, max=1000, help="Edges.")] = 2,
    devices: Annotated[int, typer.Option(min=1, max=100_000, help="Devices, spread over the agents.")] = 10,
    agents: Annotated[int | None, typer.Option(min=1, help="Agent processes; default: one a core.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Of the cloud; default: 8000, or any free one.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Keep the state here; default: a temporary folder.")] = None,
    ready_s: Annotated[float, typer.Option(min=1, help="Longest wait until all are there.")] = 120.0,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Start Redis, the cloud, edges and agents as local processes, and keep them until Ctrl-C."""
    from strata.fleet.processes import fleet_of
    from strata.launcher.topology import Topology
    from strata.output import stderr

    running = home.running()
    if running:
        raise Conflict(f"a topology runs already at {running.url}; `strata down` stops it")
    topology = Topology(
        edges=edges, devices=devices, agents=agents, port=_port(port), folder=state_dir, runs_dir=runs_dir
    )
    with as_interrupt(), contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        with stderr().status(f"starting cloud, {edges} edges, {len(topology.rooms)} agents"):
            stack.enter_context(topology)
            topology.wait_ready(ready_s)
        stack.enter_context(home.announced(topology.url, (topology.folder / "logs").resolve()))
        fleet = stack.enter_context(fleet_of(topology, "strata-up"))
        _say_ready(topology, format)
        _keep(topology, fleet)


def _port(wished: int | None) -> int:
    """The wished port; without a wish the usual one if it is free."""
    from strata.launcher.environment import listening

    if wished is not None:
        return wished
    try:
        listening("127.0.0.1", _PORT).close()
    except BadInput:
        return 0
    return _PORT


def _say_ready(topology: Topology, format: Format) -> None:
    from strata.output import print_json, stdout

    agents = len(topology.rooms)
    if format is Format.json:
        ready = {"url": topology.url, "pid": os.getpid(), "edges": len(topology.edge_names), "agents": agents}
        print_json(ready | {"devices": sum(topology.rooms), "folder": str(topology.folder)}, indent=None)
        return
    console = stdout()
    words = f"{len(topology.edge_names)} edges, {agents} agents with {sum(topology.rooms)} devices"
    console.print(f"[green]ready[/green] at {topology.url}: {words}", highlight=False)
    console.print(f"logs in {topology.folder / 'logs'}; Ctrl-C stops all of it", highlight=False, soft_wrap=True)


def _keep(topology: Topology, fleet: Fleet) -> None:
    """Wait for the end. A lost edge or agent is said aloud once, and lived with; the cloud and Redis are needed."""
    from strata.output import print_error

    told: set[str] = set()
    while True:
        for process in topology.dead():
            if process.name == "cloud":
                raise process.death()
            if process.name not in told:
                told.add(process.name)
                print_error(process.death())
        if not topology.redis.alive:
            topology.check()
        topology.trim_logs()
        fleet.settle()
        time.sleep(_LOOK_S)


def down(format: FormatOption = Format.table) -> None:
    """Stop what `strata up` started here."""
    from strata.output import print_json, stdout

    running = home.running()
    if running is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGTERM)
        deadline = time.monotonic() + _DOWN_S
        while home.running() is not None or _alive(running.pid):
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"process {running.pid} still runs after {_DOWN_S:g} s")
            time.sleep(0.1)
    if format is Format.json:
        print_json({"stopped": running is not None, "url": running.url if running else None}, indent=None)
    elif running is not None:
        stdout().print(f"stopped the topology at {running.url}", highlight=False)
    else:
        stdout().print("no `strata up` runs here; containers are stopped by `docker compose down -v`")


def _alive(pid: int) -> bool:
    """Whether a process of that number runs (a zombie has ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- scale


def scale(
    devices: Annotated[list[str], typer.Argument(metavar="N | SERVICE=N...", help="For instance 12, or device=12.")],
    wait: Annotated[bool, typer.Option("--wait", help="Until it is so, or a reason why not is known.")] = False,
    limit_s: Annotated[float, typer.Option(min=1, help="Longest wait.")] = 600.0,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Change the number of devices while everything runs; the fleet of `strata up`, `run` or Compose makes it so.

    Exit status 0 if the number was taken; with --wait, if it was reached.
    """
    from strata.output import print_json, stdout

    number = _number(devices)
    with connect(url) as client:
        info = client.scale(number)
        if wait:
            info = _reached(client, info.wanted, limit_s)
    if format is Format.json:
        print_json({"wanted": info.wanted, "present": info.present, "n_devices": info.n_devices}, indent=None)
    else:
        stdout().print(_progress(info), highlight=False, soft_wrap=True)


def _number(words: list[str]) -> int | dict[str, int]:
    """What the user wrote, `12` or `device=4 device_slow=2`."""
    if len(words) == 1 and words[0].isdecimal():
        return int(words[0])
    pairs = [word.partition("=") for word in words]
    if not all(service and number.isdecimal() for service, _, number in pairs):
        raise typer.BadParameter(f"a number, or service=number for each, not {' '.join(words)!r}")
    return {service: int(number) for service, _, number in pairs}


def _reached(client: Client, wanted: Mapping[str, int], limit_s: float) -> TopologyInfo:
    """The topology once what is wanted is there, and nothing else of the fleet runs; tells how far it is on the way.

    Raises:
        NotReady: the fleet says why it cannot be, or is gone.
        Conflict: somebody else wants something else by now.
        DeadlineExceeded: not in time; says how far it came.
    """
    from strata.output import stderr

    deadline, told = time.monotonic() + limit_s, ""
    while True:
        info = client.topology()
        progress = _progress(info)
        if progress != told:
            stderr().print(progress, highlight=False, soft_wrap=True)
            told = progress
        if info.wanted != wanted:
            raise Conflict(f"somebody wants something else: {progress}")
        if info.fleet is None:
            raise NotReady("the fleet is not heard any more")
        if all(info.present.get(name) == info.fleet.running.get(name, 0) == n for name, n in wanted.items()):
            return info
        if info.fleet.error and info.fleet.wanted == wanted:
            raise NotReady(f"{progress}: {info.fleet.error}")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"after {limit_s:g} s {progress}")
        time.sleep(_LOOK_S)


def _progress(info: TopologyInfo) -> str:
    parts = [f"{service}: {info.present.get(service, 0)} of {number}" for service, number in info.wanted.items()]
    leaving = (
        f"; leaving after this round: {', '.join(info.fleet.leaving)}" if info.fleet and info.fleet.leaving else ""
    )
    return ", ".join(parts) + leaving
