"""What a run takes of its agents: numbers and profiles that its spec leaves open; and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.room import why_fixed
from shared.core.formatting import counted
from shared.federation.expected_times import ExpectedTimes, ProfileOf
from shared.federation.experiment import Experiment
from shared.run_records.plans import RunPlan
from shared.run_records.runs import RunInfo
from shared.simulation.profile_catalogue import STANDARD
from shared.spec.experiment import ExperimentSpec

MOST_NOTES = 10
"""Agents of which a run notes that they take no part, or that their profile does not count."""
_BEGIN = "agent "


def resolved(spec: ExperimentSpec, agents: Sequence[AgentEntry], n_edges: int) -> ExperimentSpec:
    """The spec of a run with what it leaves open taken from the agents that are alive, and the number of edges."""
    profiles = {agent.effective_profile for agent in agents}
    return spec.resolved(n_devices=sum(agent.devices for agent in agents), n_edges=n_edges, profiles=profiles)


def whole_plan(experiment: Experiment, asked: ExperimentSpec, manager: PlacementManager) -> RunPlan:
    """The plan of a run: what data and model were taken to be, whose profiles count, and how long all is to take.

    Args:
        experiment: of the resolved spec.
        asked: the spec as it was submitted.
        manager: has placed the devices.
    """
    times = ExpectedTimes(experiment, experiment.spec, profile_of_agents(experiment, manager))
    return times.plan(*profiles_line(asked, manager))


def profile_of_agents(experiment: Experiment, manager: PlacementManager) -> ProfileOf:
    """By device, the profile of its agent; none where the spec decides."""
    if not experiment.spec.devices.by_agent:
        return lambda number: None
    entries = manager.registry.agents

    def profile(number: int) -> str:
        entry = entries.get(manager.placement.agent_of(number) or "")
        return entry.effective_profile if entry else STANDARD

    return profile


def profiles_line(asked: ExperimentSpec, manager: PlacementManager) -> tuple[str, ...]:
    """The line of the plan that says whose profiles the devices have; none where no agent names one."""
    entries, found = manager.registry.agents, Counter[str]()
    for agent, seats in manager.placement.agents.items():
        found[entries[agent].effective_profile if agent in entries else STANDARD] += len(seats)
    if found.keys() <= {STANDARD}:
        return ()
    numbers = ", ".join(f"{counted(n, 'device')} {name}" for name, n in sorted(found.items()))
    if not asked.devices.resolved(found).by_agent:
        return (f"profiles: those of the spec; what the agents name ({numbers}) does not count",)
    hint = "" if asked.devices.by_agent else "; the spec names none (devices.profile: standard would make all alike)"
    return (f"profiles: each device has that of its agent: {numbers}{hint}",)


def notes_of_surplus(info: RunInfo, n_devices: int, n_edges: int) -> Iterator[str]:
    """What is said of a run that trains with fewer devices or edges than so many."""
    for word, most, wanted, hint in (
        ("device", info.spec.max_devices, n_devices, _room(info.spec, f"strata change {info.run}")),
        ("edge", info.spec.num_edges, n_edges, "a run that begins later has them"),
    ):
        if info.resolved and most is not None and wanted > most:
            has = f"run {info.run} has {counted(most, word)}"
            yield f"{has}: {wanted - most} of {wanted} take no part; {hint}"


def _room(spec: ExperimentSpec, command: str = "strata change RUN") -> str:
    if why_fixed(spec) is None:
        return f"`{command} --max-devices N` makes room for more"
    return f"`max_devices` above {spec.max_devices} in the spec keeps room for agents that come later"


def with_idle_agents(info: RunInfo, manager: PlacementManager) -> RunInfo:
    """The document of a run, with a note for each agent that came later and takes no part, or not as its name says."""
    new = [entry for entry in manager.agents() if entry.agent not in manager.placement.present]
    notes = [note for entry in new if (note := _note(entry, manager, info.spec)) is not None]
    told = sum(note.startswith(_BEGIN) for note in info.notes)
    more = [note for note in notes if note not in info.notes][: max(MOST_NOTES - told, 0)]
    return info.replace(notes=(*info.notes, *more)) if more else info


def _note(entry: AgentEntry, manager: PlacementManager, spec: ExperimentSpec) -> str | None:
    if not manager.placement.agents.get(entry.agent):
        if len(manager.placement.taken) < manager.population.n_devices:
            return None  # it takes some before the next round
        n = manager.population.n_devices
        return f"{_BEGIN}{entry.name} takes no part: all {counted(n, 'device')} of the run have agents; {_room(spec)}"
    if entry.effective_profile != STANDARD and not spec.devices.by_agent:
        why = f"the devices of this run have the profiles with which it began; {entry.effective_profile} does not count"
        return f"{_BEGIN}{entry.name}: {why}"
    return None
