"""What a user asks Slurm for."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from shared.core.bounds import LARGEST_DEVICES
from shared.core.records import Record
from shared.core.validation import ID

LARGEST_ARRAY = 1000
"""Most tasks of an array of jobs: what Slurm allows where nobody has changed it (`MaxArraySize` of 1001)."""
CORE, EDGES, AGENTS, CHECK = "core", "edges", "agents", "check"
KINDS = (CORE, EDGES, AGENTS)
"""The jobs of a deployment, in the order in which they begin."""
_LEFT_S = 15
"""Seconds before its time limit that a job keeps for ending its processes."""


def _one_line(text: str) -> str:
    """Refuses what would end a line of a job script.

    Raises:
        ValueError: the text has characters that cannot be printed.
    """
    if not text.isprintable() or not text.strip():
        raise ValueError("must be one line of printable characters")
    return text


def _time_limit(text: str) -> str:
    """Refuses what Slurm does not take for a time.

    Raises:
        ValueError: the text has none of Slurm's forms.
    """
    if not re.fullmatch(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d", text):
        raise ValueError("must be a time of Slurm: minutes, minutes:seconds, hours:minutes:seconds or days-hours")
    return text


Line = Annotated[str, AfterValidator(_one_line), Field(max_length=1000)]


class Asked(Record):
    """What jobs of one kind are given, as `sbatch` names it; None = what the cluster gives.

    Attributes:
        gres: generic resources, such as `gpu:1`.
        more: further options of `sbatch`, such as `--reservation=course`.
    """

    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    mem: Line | None = None
    gres: Line | None = None
    time: Annotated[str, AfterValidator(_time_limit)] | None = None
    cpus: int = Field(default=1, ge=1, le=4096)
    more: tuple[Annotated[Line, Field(pattern="^--[a-z]")], ...] = Field(default=(), max_length=50)


class Options(Record):
    """The size of a deployment, and what its jobs ask for.

    Attributes:
        name: of the deployment, unique among those of a user in one folder.
        nodes: the jobs of agents; each is on one node.
        edges: the edges, each a job of its own.
        agents_per_node: the agents of one of these jobs.
        agents_per_gpu: how many agents share a GPU; 0 = GPUs are left to Slurm and torch.
        devices_per_agent: the devices that an agent hosts.
        profile: the profile of its devices.
        network: the network of the nodes, such as `10.1.0.0/16`; None = that of the nodes' names.
        setup: lines of shell that jobs run first, such as `module load cuda`.
        core, edge, agent: what the jobs ask for.
        lead_s: seconds before the time limit at which a job hands over.
        hasten: whether tasks of a dead or pre-empted node may start before the two minutes that Slurm waits.
        every_s: seconds between two looks at the queue.
        idle_s: seconds without a cloud after which a job of edges or agents ends.
        return_s: seconds for which a run waits for a job that began anew.
    """

    name: str = Field(default="default", pattern=ID)
    nodes: int = Field(default=1, ge=1, le=LARGEST_ARRAY)
    edges: int = Field(default=2, ge=1, le=LARGEST_ARRAY)
    agents_per_node: int = Field(default=1, ge=1, le=256)
    agents_per_gpu: int = Field(default=0, ge=0, le=64)
    devices_per_agent: int = Field(default=1, ge=1, le=LARGEST_DEVICES)
    profile: Line = "standard"
    network: Line | None = None
    setup: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(default=(), max_length=200)
    core: Asked = Asked()
    edge: Asked = Asked()
    agent: Asked = Asked()
    lead_s: int = Field(default=120, ge=20, le=3600)
    hasten: bool = False
    every_s: float = Field(default=5.0, ge=0.2, le=300)
    idle_s: float = Field(default=1800.0, ge=10)
    return_s: float = Field(default=900.0, ge=10)

    @property
    def devices_per_node(self) -> int:
        """The devices of one job of agents."""
        return self.agents_per_node * self.devices_per_agent

    @property
    def hand_over_s(self) -> int:
        """Seconds for which a job that is near its time limit waits until runs have paused."""
        return self.lead_s - _LEFT_S

    def asked(self, kind: str) -> Asked:
        """What jobs of this kind ask for."""
        return {CORE: self.core, CHECK: self.agent, EDGES: self.edge, AGENTS: self.agent}[kind]

    def edge_name(self, index: int) -> str:
        """The name of the edge of a task of the array: the same whenever and wherever it runs."""
        return f"edge-{index}"

    def agent_names(self, index: int) -> list[str]:
        """The names of the agents of a task of the array."""
        first = (index - 1) * self.agents_per_node + 1
        return [f"agent-{first + at}" for at in range(self.agents_per_node)]

    def names(self, kind: str, index: int) -> list[str]:
        """The names of the nodes of a task of the array."""
        return [self.edge_name(index)] if kind == EDGES else self.agent_names(index)
