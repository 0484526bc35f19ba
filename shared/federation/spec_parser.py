"""Parsing a spec: its fields, then every name in it against the registries of algorithms, models and data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shared.core.errors import BadInput, UnknownName
from shared.core.validation import explain
from shared.federation.population.derivation import check_counts
from shared.federation.registry import load_algorithm, load_local
from shared.federation.scoring import check_scoring
from shared.federation.selection import check_selection
from shared.federation.server_optimizers import with_server_optimizers
from shared.federation.test_sets import check_test_on
from shared.spec.experiment import ExperimentSpec, S
from shared.spec.run import RunSpec
from shared.training.data.digit_domains import NAME, names_of
from shared.training.data.open_data import check_data
from shared.training.models import check_name
from shared.training.partition import ByDomainPartition, PluggedPartition, check_plugged


def parse_spec(raw: Any) -> ExperimentSpec:
    """Validate a mapping as a spec, algorithm parameters included.

    Raises:
        BadInput: naming the field's path, the cause, and for an unknown key the nearest known one.
    """
    return parse_as(raw, ExperimentSpec)


def parse_as(raw: Any, kind: type[S]) -> S:
    """Validate a mapping as a spec of a kind, as `parse_spec` does."""
    if not isinstance(raw, Mapping):
        raise BadInput(f"a spec is a mapping of fields, not {type(raw).__name__}")
    try:
        spec = kind.model_validate(dict(raw))
    except ValidationError as error:
        raise explain(error, kind) from None
    check_names(spec)
    check_counts(spec)
    return spec


def check_names(spec: ExperimentSpec) -> None:
    """Check every name in a spec against its registry, and that algorithm, loss, data, partition and tests fit.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    algorithm = load_algorithm(spec.algorithm.name)
    algorithm.check_spec(spec)
    with_server_optimizers(algorithm, spec)
    local, _ = load_local(spec)
    if spec.vectorised is not None and local.objective is not None:
        why = f"the objective of {local.name} is written for one device; only the cross-entropy is known for many"
        raise BadInput(f"vectorised: {why}", field="vectorised")
    check_scoring(spec)
    check_data(spec.data)
    check_partition(spec)
    check_selection(spec)
    check_test_on(spec, names_of(spec.data))
    check_name(spec.model.name, spec.model.width, spec.model.params)


def parse_run_spec(raw: Any) -> RunSpec:
    """Validate a mapping as a spec with what a user wants of the run.

    Raises:
        BadInput: as `parse_spec`.
    """
    return parse_as(raw, RunSpec)


def check_partition(spec: ExperimentSpec) -> None:
    """Check a plug-in's partition, and that a partition by domains names only domains of the spec's data.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    names, partition = names_of(spec.data), spec.partition
    if isinstance(partition, PluggedPartition):
        check_plugged(partition)
    if not isinstance(partition, ByDomainPartition):
        return
    if not names:
        raise BadInput(f"by_domain goes with data: {NAME}, not with {spec.data.name}", field="partition.name")
    for name in partition.domains or ():
        if name not in names:
            raise UnknownName("domain", name, list(names), field="partition.domains")
