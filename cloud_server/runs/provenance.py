"""Whether a resumed run goes on with the data, the code and the packages that it began with."""

from __future__ import annotations

from cloud_server.runs.events import RunEvent, now
from shared.core.errors import Conflict, StrataError
from shared.core.versions import versions
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.plugin_checks import packages_of
from shared.results.manifest import cpu_model, gpu_of
from shared.run_records.provenance import Provenance, ProvenanceChange
from shared.run_records.runs import RunInfo

NOT_RECORDED = "what the run began with is not recorded; data and packages are those of its resumption after round {}"


class ProvenanceChanged(Conflict):
    """A run would go on with other data, code or packages than it began with (409); the message says which."""

    code = "provenance_changed"

    def __init__(self, run_id: str, differences: tuple[str, ...]) -> None:
        self.differences = differences
        super().__init__(
            f"run {run_id} began with other data or packages: {'; '.join(differences)}. Bring those back, or resume it "
            "with --accept-changes (accept_changes=true), which records the change"
        )


def provenance_of(experiment: Experiment) -> Provenance:
    """What the model of an experiment depends on in this process."""
    return Provenance(
        data_digest=experiment.data.digest,
        population_digest=experiment.population.digest,
        versions=versions(),
        cpu=cpu_model(),
        gpu=gpu_of(experiment.spec.device),
        plugins=packages_of(experiment.spec),
    )


def last_provenance(info: RunInfo) -> Provenance | None:
    """What a run last went on with, None if it is not recorded."""
    return info.changes[-1].provenance if info.changes else info.provenance


def check_data(info: RunInfo, experiment: Experiment) -> None:
    """Checks that an experiment has the data and the seats that a run last trained with.

    Raises:
        ProvenanceChanged: it has others.
    """
    before = last_provenance(info)
    if before is None:
        return
    digests = {"data_digest": experiment.data.digest, "population_digest": experiment.population.digest}
    if differences := before.differences(before.replace(**digests)):
        raise ProvenanceChanged(info.run, differences)


def reopened(experiments: ExperimentCache, info: RunInfo) -> Experiment:
    """The experiment of a run that is resumed.

    Raises:
        ProvenanceChanged: other data does not fit the spec any more.
        BadInput: the data is not available here.
    """
    try:
        return experiments.of(info.spec)
    except StrataError:
        before = last_provenance(info)
        if before is None:
            raise
        found = before.replace(data_digest=experiments.data_of(info.spec).digest)
        if not (differences := before.differences(found)):
            raise
        raise ProvenanceChanged(info.run, differences) from None


def reconciled(info: RunInfo, present: Provenance, accept: bool) -> tuple[RunInfo, tuple[RunEvent, ...]]:
    """The document of a run that goes on with `present`, and the events that say what changed.

    Another machine is recorded and refused never; a run of which nothing is recorded, as an earlier version left it,
    gets `present` with a note.

    Raises:
        ProvenanceChanged: data, code or packages differ, and the change is not accepted.
    """
    before = last_provenance(info)
    if before is None:
        note = NOT_RECORDED.format(info.rounds)
        return info.replace(provenance=present, notes=(*info.notes, note)), (RunEvent("run.note", {"note": note}),)
    differences = before.differences(present)
    if differences and not accept:
        raise ProvenanceChanged(info.run, differences)
    differences += before.machine_differences(present)
    if not differences:
        return info, ()
    change = ProvenanceChange(after_round=info.rounds, at=now(), differences=differences, provenance=present)
    event = RunEvent("run.changed", {"after_round": info.rounds, "reason": "; ".join(differences)[:2000]})
    return info.replace(changes=(*info.changes, change)), (event,)
