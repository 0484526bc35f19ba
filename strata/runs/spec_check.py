"""Checking a spec with its data before any tier starts: in this process, or in one forked from the fork server.

What is checked with imports torch, which takes seconds. The fork server of a topology imports it anyhow, so that the
launcher need not: `python -m strata.runs.spec_check` is the program that it forks.
"""

from __future__ import annotations

import json
import os
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from shared.core.errors import StrataError
from shared.core.user_code import user_code
from shared.service.api.problem import Problem
from shared.service.remote_errors import remote_error
from shared.spec.experiment import ExperimentSpec
from shared.spec.run import RunSpec
from strata.launcher import home
from strata.launcher.topology import Topology

if TYPE_CHECKING:
    from shared.federation.experiment import Experiment

_EDGES, _DEVICES = 2, 10
_END_S = 10.0


def topology_size(spec: ExperimentSpec) -> tuple[int, int]:
    """Numbers of edges and devices of the local topology for a spec: the spec's own, else the defaults."""
    devices = spec.num_devices or _DEVICES
    return spec.num_edges or min(_EDGES, devices), devices


def with_topology_size(spec: RunSpec) -> RunSpec:
    """The spec with its numbers of edges and devices."""
    edges, devices = topology_size(spec)
    return RunSpec.model_validate({**spec.model_dump(mode="json"), "num_edges": edges, "num_devices": devices})


def checked(spec: RunSpec) -> RunSpec:
    """The spec with its numbers of edges and devices, validated with its data before any process is started.

    Code of a user that it calls is tried on a batch.

    Raises:
        StrataError: something that it needs is not there, or spec and data do not fit together.
    """
    from shared.federation.spec_parser import parse_run_spec
    from shared.federation.trial import try_run
    from shared.results.tracking.live import check_trackers
    from shared.training.compute_device import compute_device_of

    whole = parse_run_spec(with_topology_size(spec).model_dump(mode="json"))
    check_trackers(spec.tracking)
    compute_device_of(spec.device)
    try_run(experiment_of(whole))
    return whole


def experiment_of(spec: RunSpec) -> Experiment:
    """The experiment of a spec with its data, on the topology that it would have here.

    Raises:
        StrataError: as `checked`.
    """
    from shared.federation.experiment import Experiment
    from shared.federation.spec_parser import parse_run_spec
    from shared.service.settings import CommonSettings
    from shared.training.data.open_data import open_data

    whole, (edges, devices) = parse_run_spec(spec.model_dump(mode="json")), topology_size(spec)
    data = open_data(spec.data, data_dir=CommonSettings().data_dir, cache_dir=home.cache_folder())
    return Experiment(whole.experiment.resolved(n_devices=devices, n_edges=edges), data)


def check_beside(topology: Topology, spec: RunSpec) -> None:
    """Check a spec as `checked` does, in a process of its own of a topology that is prepared.

    What the check writes to stderr, such as the progress of a download, appears on that of this process.

    Raises:
        StrataError: as `checked`.
        ProcessDied: the process ended without an answer.
    """
    ours, theirs = Pipe()
    terminal = os.dup(2)
    with ours:
        try:
            inherited = {"CHECK_FD": theirs.fileno(), "TERMINAL_FD": terminal}
            process = topology.start_beside("spec-check", __name__, inherited)
        finally:
            theirs.close()
            os.close(terminal)
        try:
            ours.send_bytes(spec.model_dump_json().encode())
            answer = ours.recv_bytes()  # without a limit: it may download data
        except (EOFError, OSError):
            process.wait(_END_S)
            raise process.death() from None
        finally:
            process.signal(signal.SIGKILL)  # it has nothing left to do
            process.wait(_END_S)
    if answer:
        raise remote_error(json.loads(answer)["status"], answer, "the check")


def main() -> None:
    """Check the spec that the launcher sends, and send the problem back, or nothing."""
    os.dup2(int(os.environ["TERMINAL_FD"]), 2)
    with Connection(int(os.environ["CHECK_FD"])) as launcher:
        problem = b""
        try:
            with user_code("the check of the spec"):
                checked(RunSpec.model_validate_json(launcher.recv_bytes()))
        except StrataError as error:
            whole = Problem(title="", status=error.status, code=error.code, detail=error.detail, field=error.field)
            problem = whole.model_dump_json().encode()
        launcher.send_bytes(problem)


if __name__ == "__main__":
    main()
