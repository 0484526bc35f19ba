"""`Cloud`: a running cloud, on which to start runs and look at them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from shared.run_records.runs import RunInfo
from shared.service.api.algorithms import AlgorithmInfo
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo
from strata.connection import connect as client_of
from strata.objects import html
from strata.objects.connection import Connection
from strata.objects.run import Run
from strata.objects.sweep import Sweep, sweep_on
from strata.spec_files import SpecSource, overrides_of, read_spec


class Cloud:
    """A connection to a cloud; a context manager that closes it.

    It works in scripts and notebooks alike: its methods wait for their answers and need no event loop.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def url(self) -> str:
        """Its address; the dashboard is at `/ui/` there."""
        return self._connection.url

    def close(self) -> None:
        """Close the connection; the cloud and its runs go on. A second call does nothing."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- runs

    def run(self, spec: SpecSource | None = None, /, **overrides: Any) -> Run:
        """Start a run, which then waits for its turn, and return it at once.

        Args:
            spec: the name of an experiment, the path of a spec's file, its fields, or a `Spec`; None means
                the defaults.
            overrides: fields to change, `lr=0.1`, with dotted keys too: `**{"algorithm.params.mu": 0.1}`.

        Raises:
            BadInput: a field is wrong; `field` is its path. Nothing is started.
        """
        wanted = read_spec({} if spec is None else spec, overrides_of(overrides))
        return self._run_of(self._connection.client.create_run(wanted.model_dump(mode="json", exclude_none=True)))

    def get_run(self, run: str = "latest") -> Run:
        """The run with this id; `latest` is the newest.

        Raises:
            NotFound: there is none.
        """
        return self._run_of(self._connection.client.run(run))

    def runs(self, limit: int = 50, owner: str | None = None) -> tuple[Run, ...]:
        """The newest runs first; those of one user, or of `admin`, if named."""
        return tuple(map(self._run_of, self._connection.client.runs(limit, owner)))

    def _run_of(self, info: RunInfo) -> Run:
        runs_dir = self._connection.runs_dir
        return Run(info, self._connection, runs_dir / info.run if runs_dir else None)

    def sweep(
        self,
        spec: SpecSource,
        values: Mapping[str, Any],
        *,
        parallel: int = 1,
        into: str | os.PathLike[str] | None = None,
        runs_dir: str | os.PathLike[str] = "runs",
        progress: bool = True,
    ) -> Sweep:
        """Run every combination of the values on this cloud and wait for all; see `strata.sweep`.

        Args:
            spec: the name of an experiment, the path of a spec's file, its fields, or a `Spec`.
            values: by dotted key, such as `{"lr": [0.05, 0.1], "seed": [1, 2]}`.
            parallel: number of runs that are submitted at a time; the cloud has a limit of its own.
            into: the folder of the sweep; None means one in `runs_dir`.
            runs_dir: the folder into which results are fetched; a cloud of `strata.local` has its own.
            progress: whether to show the progress.
        """
        return sweep_on(self._connection, spec, values, into, runs_dir, parallel, progress)

    # ---- nodes and algorithms

    def topology(self) -> TopologyInfo:
        """Its edges, agents and numbers of devices."""
        return self._connection.client.topology()

    def edges(self) -> tuple[EdgeInfo, ...]:
        """The registered edges."""
        return self._connection.client.edges().edges

    def agents(self) -> tuple[AgentInfo, ...]:
        """The registered agents, the processes that host devices."""
        return self._connection.client.agents().agents

    def algorithms(self) -> tuple[AlgorithmInfo, ...]:
        """The algorithms that it knows, with their parameters."""
        return self._connection.client.algorithms().algorithms

    def scale(self, devices: int | Mapping[str, int] | None = None, edges: int | None = None) -> TopologyInfo:
        """Ask for a number of devices, in total or by service, and of edges; its fleet then starts or stops them."""
        return self._connection.client.scale(devices, edges)

    # ---- how it is shown

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}{', closed' if self._connection.closed else ''}>"

    def _repr_html_(self) -> str:
        if self._connection.closed:
            return html.table([], title=repr(self)[1:-1])
        info = self.topology()
        nodes = [*((edge.edge, edge.state, "edge") for edge in info.edges)]
        nodes += [(agent.name, agent.state, f"agent with {agent.devices} devices") for agent in info.agents]
        return html.table(nodes, ("name", "state", "node"), f"{self.url}, {info.n_devices} devices")


def connect(
    url: str | None = None, *, token: str | None = None, authority: str | os.PathLike[str] | None = None
) -> Cloud:
    """Connect to a cloud that runs.

    Args:
        url: its address; None means STRATA_URL, else the cloud of a running `strata up`.
        token: the API token; None means STRATA_API_TOKEN or the content of STRATA_API_TOKEN_FILE.
        authority: a file with the certificate of the authority that signs the cloud's; None means STRATA_CA_FILE, else
            the authorities that this machine trusts.

    Raises:
        NotFound: no cloud was named and none runs here.
        Unreachable: it does not answer.
        Unauthorised: it refuses the token.
    """
    client = client_of(url, token=token, authority=Path(authority) if authority is not None else None)
    try:
        client.topology()
    except BaseException:
        client.close()
        raise
    return Cloud(Connection(client))
