"""Room for more devices in a run that goes on: its `max_devices` is raised.

Only where each device draws its own samples (`partition: sampled`): otherwise the data have been divided among the
devices that there are, and another number would give every one of them other samples.
"""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from cloud_server.runs.events import RunEvent, now
from cloud_server.runs.provenance import last_provenance, provenance_of, reopened
from cloud_server.runs.run_state import CloudServices, RunState
from shared.core.errors import BadInput, Conflict
from shared.core.validation import explain
from shared.federation.experiment import Experiment
from shared.federation.population.population import Population
from shared.run_records.provenance import ProvenanceChange
from shared.run_records.runs import FINAL, RunInfo
from shared.spec.experiment import ExperimentSpec
from shared.training.partition import SampledPartition

FIELD = "max_devices"


def why_fixed(spec: ExperimentSpec) -> str | None:
    """Why a run of this spec has no room for more devices than it began with, None if it can have."""
    if not isinstance(spec.partition, SampledPartition):
        divided = f"`partition: {spec.partition.name}` has divided the data among its devices"
        return f"{divided}; with `sampled` each draws its own"
    if spec.sync.devices.asynchronous or spec.sync.edges.mode != "synchronous":
        return "tasks of several rounds are in flight at a time, which name the devices that there were"
    return None


async def with_room(services: CloudServices, info: RunInfo, n: int) -> tuple[RunInfo, RunEvent]:
    """The document of a run that has room for `n` devices from its next round on, and the event that says so.

    Raises:
        Conflict: the run has not begun, has ended, or its devices depend on their number.
        BadInput: it has room for as many already, or the spec does not hold with so many; names the field.
    """
    spec = info.spec
    if not info.resolved or info.status in FINAL:
        raise Conflict(f"run {info.run} is {info.status}: only one that has begun and not ended can have more devices")
    if (why := why_fixed(spec)) is not None:
        raise Conflict(f"{FIELD} of run {info.run} cannot be raised: {why}", field=FIELD)
    if n <= (spec.max_devices or 0):
        raise BadInput(f"{FIELD}: run {info.run} has room for {spec.max_devices}, and keeps it", field=FIELD)
    try:
        more = ExperimentSpec.model_validate({**spec.model_dump(exclude_unset=True), FIELD: n})
    except ValidationError as error:  # what it lists for each device is of the devices that there are
        raise BadInput(f"{FIELD} {n}: {explain(error, ExperimentSpec).detail}", field=FIELD) from None
    before, after = await services.thread.run(
        lambda: (reopened(services.experiments, info), services.experiments.of(more))
    )
    if not _extends(after.population, before.population):
        raise Conflict(f"{FIELD} of run {info.run} cannot be raised: its devices depend on their number", field=FIELD)
    told = f"room for {n} devices, before for {spec.max_devices}"
    event = RunEvent("run.changed", {"after_round": info.rounds, "reason": told})
    return info.replace(spec=more, changes=(*info.changes, *await _change(services, info, after, told))), event


async def _change(services: CloudServices, info: RunInfo, after: Experiment, told: str) -> tuple[ProvenanceChange, ...]:
    """What is recorded of it; nothing if it is not recorded what the run began with."""
    known = last_provenance(info)
    if known is None:
        return ()
    present = await services.thread.run(provenance_of, after)
    provenance = known.replace(population_digest=present.population_digest)
    return (ProvenanceChange(after_round=info.rounds, at=now(), differences=(told,), provenance=provenance),)


def _extends(after: Population, before: Population) -> bool:
    """Whether a population has the devices of another one, and further ones."""
    n = before.n_devices
    return np.array_equal(after.home_edges[:n], before.home_edges) and after.held_out == before.held_out


async def make_room(services: CloudServices, info: RunInfo, state: RunState) -> None:
    """Let a run go on with the number of devices in its document, if that has been changed."""
    if state.experiment.spec.max_devices != info.spec.max_devices:
        state.experiment = await services.thread.run(reopened, services.experiments, info)
        state.placement.population = state.experiment.population
