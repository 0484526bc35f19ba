"""StrataFL on a Slurm cluster (`slurm`): `up`, `run`, `scale`, `status`, `down`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from shared.core.errors import BadInput, NotReady
from shared.core.validation import explain
from strata.launcher.signals import as_interrupt
from strata.options import RUNS_DIR, Format, FormatOption, RunsDirOption, SpecArgument, spec_and_fields

if TYPE_CHECKING:
    from shared.run_records.rounds import RoundInfo
    from shared.run_records.runs import RunInfo
    from shared.spec.run import RunSpec
    from strata.api.client import Client
    from strata.slurm.commands import Slurm
    from strata.slurm.deployment import Address, Deployment
    from strata.slurm.options import Options

slurm = typer.Typer(
    name="slurm", help="Run the system on a Slurm cluster, as jobs of the user.", no_args_is_help=True
)  # fmt: skip

NameOption = Annotated[str, typer.Option(help="Name of the deployment, whose folder is .strata/slurm/NAME.")]
RunNameOption = Annotated[str, typer.Option(help="Name of the deployment; default: run- and six drawn characters.")]
NodesOption = Annotated[int, typer.Option(min=1, help="Jobs of agents, each on one node.")]
EdgesOption = Annotated[int, typer.Option(min=1, help="Number of edges, each a job.")]
AgentsOption = Annotated[int, typer.Option(min=1, help="Agents in each of these jobs; each agent has a CPU core.")]
DevicesOption = Annotated[int, typer.Option(min=1, help="Devices that an agent hosts.")]
PerGpuOption = Annotated[
    int, typer.Option(min=0, help="Agents that share a GPU of their job; 0 leaves GPUs to Slurm and torch.")
]
ProfileOption = Annotated[str, typer.Option(help="Profile of the agents' devices.")]
GresOption = Annotated[str | None, typer.Option(help="Generic resources of agents, such as gpu:1.")]
CoreGresOption = Annotated[
    str | None,
    typer.Option(help="Those of the core's job, whose cloud evaluates on a GPU where the spec has `device: cuda`."),
]
PartitionOption = Annotated[str | None, typer.Option(help="Partition of all jobs.")]
AgentPartitionOption = Annotated[str | None, typer.Option(help="Partition of agents, if it is another one.")]
AccountOption = Annotated[str | None, typer.Option(help="Account of all jobs.")]
QosOption = Annotated[str | None, typer.Option(help="Quality of service of all jobs.")]
ConstraintOption = Annotated[str | None, typer.Option(help="Features that the nodes of all jobs must have.")]
TimeOption = Annotated[str | None, typer.Option(help="Time limit of all jobs, such as 4:00:00.")]
MemOption = Annotated[str | None, typer.Option(help="Memory of each job, such as 4G.")]
SbatchOption = Annotated[
    list[str] | None, typer.Option(help="A further option of sbatch for all jobs, such as --reservation=course.")
]
NetworkOption = Annotated[
    str | None, typer.Option(help="Network of the nodes, such as 10.1.0.0/16; default: that of their names in Slurm.")
]
SetupOption = Annotated[
    Path | None, typer.Option(help="A file with lines of shell that each job runs first, such as `module load cuda`.")
]
LeadOption = Annotated[int, typer.Option(min=20, help="Seconds before its time limit at which a job hands over.")]
HastenOption = Annotated[
    bool,
    typer.Option(
        "--hasten", help="Start jobs of dead or pre-empted nodes again at once, not after Slurm's two minutes."
    ),
]
EveryOption = Annotated[float, typer.Option(min=0.2, help="Seconds between two looks at the queue.")]
CheckOption = Annotated[bool, typer.Option("--check/--no-check", help="Check a compute node first, as a job.")]
ReadyOption = Annotated[float, typer.Option(min=1, help="Longest wait, in seconds, until it is ready.")]
_ASKED = ("partition", "account", "qos", "constraint", "time", "mem")
_SIZE = ("name", "nodes", "edges", "agents_per_node", "agents_per_gpu", "devices_per_agent", "profile", "lead_s")


@slurm.command()
def up(
    name: NameOption = "default",
    nodes: NodesOption = 1,
    edges: EdgesOption = 2,
    agents_per_node: AgentsOption = 1,
    devices_per_agent: DevicesOption = 1,
    agents_per_gpu: PerGpuOption = 0,
    profile: ProfileOption = "standard",
    gres: GresOption = None,
    core_gres: CoreGresOption = None,
    partition: PartitionOption = None,
    agent_partition: AgentPartitionOption = None,
    account: AccountOption = None,
    qos: QosOption = None,
    constraint: ConstraintOption = None,
    time: TimeOption = None,
    mem: MemOption = None,
    sbatch: SbatchOption = None,
    network: NetworkOption = None,
    setup: SetupOption = None,
    lead_s: LeadOption = 120,
    hasten: HastenOption = False,
    every_s: EveryOption = 5.0,
    check: CheckOption = True,
    ready_s: ReadyOption = 3600.0,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Submit jobs for Redis and the cloud, for edges, and for agents, and wait until a run can begin.

    A run can begin once the cloud has all edges and an agent; other agents may wait in the queue. A second `up` of the
    same name goes on with what the first one stored.
    """
    from strata.output import stderr

    options = _options(locals())
    with as_interrupt():
        deployment, commands = _submitted(options, runs_dir, None, ready_s if check else None)
        try:
            address = _ready(deployment, commands, ready_s, whole=False)
        except KeyboardInterrupt:
            stderr().print(f"its jobs stay in the queue: `strata slurm down --name {name}` ends them", highlight=False)
            raise
    _say(deployment, address, format)


@slurm.command()
def run(
    spec: SpecArgument = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Fields of the spec to change, such as partition.alpha=0.1"),
    ] = None,
    name: RunNameOption = "",
    nodes: NodesOption = 1,
    agents_per_node: AgentsOption = 1,
    agents_per_gpu: PerGpuOption = 0,
    profile: ProfileOption = "standard",
    gres: GresOption = None,
    core_gres: CoreGresOption = None,
    partition: PartitionOption = None,
    agent_partition: AgentPartitionOption = None,
    account: AccountOption = None,
    qos: QosOption = None,
    constraint: ConstraintOption = None,
    time: TimeOption = None,
    mem: MemOption = None,
    sbatch: SbatchOption = None,
    network: NetworkOption = None,
    setup: SetupOption = None,
    lead_s: LeadOption = 120,
    hasten: HastenOption = False,
    every_s: EveryOption = 5.0,
    check: CheckOption = True,
    ready_s: ReadyOption = 3600.0,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Run an experiment on jobs of its own, which end with it, and save its results in runs/<id>/.

    It has the edges that the spec needs, and its devices are spread evenly over the agents. The run begins once all
    are there. Exit status as of `strata run`.
    """
    from strata.spec_files import read_spec

    given = locals()
    source, fields = spec_and_fields(spec, overrides or [], "an override has the form key=value")
    experiment = read_spec(source, fields, check_names=False)
    with as_interrupt():
        code = _run(experiment, given, runs_dir, format)
    raise typer.Exit(code)


@slurm.command()
def status(name: NameOption = "default", format: FormatOption = Format.table) -> None:
    """Show the jobs of a deployment, and how its cloud is reached."""
    from strata.output import print_json, stdout
    from strata.slurm.connection import reachable
    from strata.slurm.up import jobs_of, progress

    deployment, commands = _known(name)
    jobs, address = jobs_of(deployment, commands), reachable(deployment)
    if format is Format.json:
        rows = [{"kind": kind, **vars(job)} for kind, found in jobs.items() for job in found]
        print_json({"name": name, "url": address.url if address else None, "jobs": rows}, indent=None)
        return
    stdout().print(progress(jobs), markup=False, highlight=False, soft_wrap=True)
    if address is None:
        stdout().print("no cloud answers", highlight=False)
    else:
        _say(deployment, address, format)


@slurm.command()
def scale(
    devices: Annotated[int | None, typer.Argument(metavar="N", help="Number of devices.")] = None,
    edges: Annotated[int | None, typer.Option(min=1, help="Number of edges.")] = None,
    name: NameOption = "default",
    format: FormatOption = Format.table,
) -> None:
    """Change the number of devices or edges; jobs are submitted, and ended once no round needs them.

    With STRATA_URL and STRATA_API_TOKEN_FILE set as `status` says, `strata scale` does the same and can wait.
    """
    from strata.output import print_json, stdout
    from strata.slurm.connection import client_of, reachable

    if devices is None and edges is None:
        raise typer.BadParameter("name a number of devices, or --edges")
    deployment, _ = _known(name)
    address = reachable(deployment)
    if address is None:
        raise NotReady(f"no cloud of {name} answers: `strata slurm status` shows its jobs")
    with client_of(deployment, address) as client:
        info = client.scale(devices, edges)
    if format is Format.json:
        print_json({"wanted": info.wanted, "wanted_edges": info.wanted_edges}, indent=None)
    else:
        wanted = {**info.wanted, "edge": info.wanted_edges}
        words = ", ".join(f"{service}: {number} wanted" for service, number in wanted.items() if number is not None)
        stdout().print(words, highlight=False)


@slurm.command()
def down(
    name: NameOption = "default",
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove its folder too: tokens, logs, and the state of its runs.")
    ] = False,
    format: FormatOption = Format.table,
) -> None:
    """End the jobs of a deployment. Runs that have not ended go on with the next `up` of this name."""
    from strata.output import print_json, stdout
    from strata.slurm import up as steps

    deployment, commands = _known(name)
    ended = steps.down(deployment, commands)
    if remove:
        steps.remove(deployment)
    if format is Format.json:
        print_json({"name": name, "ended": ended, "removed": remove}, indent=None)
    else:
        kept = "" if remove else f"; its state is kept in {deployment.folder}"
        stdout().print(f"ended {ended} jobs of {name}{kept}", markup=False, highlight=False, soft_wrap=True)


# ---- what they share


def _options(given: Mapping[str, Any]) -> Options:
    """The options of a command line.

    Raises:
        BadInput: names one that cannot be used.
    """
    from strata.slurm.host import check_network
    from strata.slurm.options import Options

    asked = {name: given[name] for name in _ASKED} | {"more": tuple(given["sbatch"] or ())}
    agent = {**asked, "gres": given["gres"], "partition": given["agent_partition"] or given["partition"]}
    network, setup = given["network"], given["setup"]
    try:
        lines = tuple(setup.read_text(encoding="utf-8").splitlines()) if setup is not None else ()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"setup: {setup} cannot be read: {error}", field="setup") from None
    size = {name: given[name] for name in _SIZE if name in given}
    more = {"network": check_network(network) if network is not None else None, "setup": lines}
    waits = {"hasten": given["hasten"], "every_s": given["every_s"]}
    core = {**asked, "gres": given["core_gres"]}
    fields = {**size, **more, **waits, "core": core, "edge": asked, "agent": agent}
    try:
        return Options.model_validate(fields)
    except ValidationError as error:
        raise explain(error, Options, []) from None


def _known(name: str) -> tuple[Deployment, Slurm]:
    from strata.slurm.commands import Slurm
    from strata.slurm.deployment import Deployment, folder_of

    deployment = Deployment.open(folder_of(name))
    return deployment, Slurm(deployment.note.slurm_bin)


def _submitted(
    options: Options, runs_dir: Path, spec: RunSpec | None, check_s: float | None
) -> tuple[Deployment, Slurm]:
    """Check a compute node, unless it is not to be waited for, and submit all jobs."""
    from strata.output import stderr, working
    from strata.slurm.check_job import check_node
    from strata.slurm.commands import Slurm
    from strata.slurm.up import make, submit_all

    commands = Slurm()
    deployment = make(options, runs_dir, commands)
    if check_s is not None:
        with working("checking a compute node", stderr()):
            found = check_node(deployment, commands, spec, check_s)
        stderr().print(f"compute node {found.node} at {found.address} is as this machine", highlight=False)
        if not found.scales:
            stderr().print("note: jobs cannot be submitted from there, so that numbers of devices and edges stay")
    submit_all(deployment, commands)
    return deployment, commands


def _ready(deployment: Deployment, commands: Slurm, ready_s: float, *, whole: bool) -> Address:
    from strata.slurm.up import wait_ready

    return wait_ready(deployment, commands, ready_s, _show, whole=whole)


def _show(words: str) -> None:
    from strata.output import stderr

    stderr().print(words, markup=False, highlight=False, soft_wrap=True)


def _say(deployment: Deployment, address: Address, format: Format) -> None:
    from strata.output import print_json, stdout
    from strata.slurm.deployment import API_TOKEN

    token_file = deployment.secret_file(API_TOKEN)
    if format is Format.json:
        ready = {"name": deployment.options.name, "url": address.url, "node": address.node, "job": address.job}
        print_json({**ready, "token_file": str(token_file), "folder": str(deployment.folder)}, indent=None)
        return
    export = f"    export STRATA_URL={address.url} STRATA_API_TOKEN_FILE={token_file}"
    for line in (f"cloud at {address.url} on {address.node}; other commands reach it after", export):
        stdout().print(line, markup=False, highlight=False, soft_wrap=True)


def _run(experiment: RunSpec, given: Mapping[str, Any], runs_dir: Path, format: Format) -> int:
    from secrets import token_hex

    from strata.commands.run import report
    from strata.runs.run_and_wait import await_results, follow_until_end
    from strata.runs.spec_check import topology_size, with_topology_size
    from strata.slurm import up as steps
    from strata.slurm.connection import client_of
    from strata.slurm.following import following

    edges, devices = topology_size(experiment)
    spec, agents = with_topology_size(experiment), given["nodes"] * given["agents_per_node"]
    size = {"edges": edges, "devices_per_agent": -(-devices // agents), "name": given["name"] or f"run-{token_hex(3)}"}
    options = _options({**given, **size})
    ready_s = given["ready_s"]
    deployment, commands = _submitted(options, runs_dir, spec, ready_s if given["check"] else None)
    ended = False
    try:
        address = _ready(deployment, commands, ready_s, whole=True)
        with client_of(deployment, address) as client:
            begun = client.create_run(spec.model_dump(mode="json", exclude_none=True))
        _show(f"run {begun.run} on the cloud at {address.url}")

        def follow(client: Client) -> tuple[RunInfo, int, tuple[RoundInfo, ...]]:
            info, interrupted = follow_until_end(client, begun)
            return info, interrupted, client.rounds(info.run).rounds

        info, interrupted, rounds = following(deployment, commands, follow, ready_s, _show)
        await_results(info, runs_dir / info.run)
        ended = info.status == "completed"
    finally:
        steps.down(deployment, commands)
        if ended:
            steps.remove(deployment)
        else:
            _show(f"its state is kept in {deployment.folder}")
    return report(info, rounds, runs_dir, format, interrupted)
