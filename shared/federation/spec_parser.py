"""Parsing a spec: its fields, then every name in it against the registries of algorithms, models and data sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shared.core.errors import BadInput, StrataError, UnknownName
from shared.core.validation import explain
from shared.federation.population.derivation import check_counts
from shared.federation.registry import load_algorithm, load_local
from shared.federation.scoring import check_scoring
from shared.federation.selection import check_selection
from shared.federation.server_optimizers import with_server_optimizers
from shared.federation.test_sets import check_test_on
from shared.spec.experiment import ExperimentSpec, S
from shared.spec.fields import AlgorithmSpec
from shared.spec.run import RunSpec
from shared.training.data.digit_domains import NAME, names_of
from shared.training.data.open_data import check_data
from shared.training.models import check_name
from shared.training.partition import ByDomainPartition, PartitionSpec, PluggedPartition, check_plugged
from shared.training.specs import DataSpec, ModelSpec

_PARTITION: TypeAdapter[Any] = TypeAdapter(PartitionSpec)


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
        raise _misplaced(raw, error) or explain(error, kind) from None
    check_names(spec)
    check_counts(spec)
    return spec


def _misplaced(raw: Mapping[str, Any], error: ValidationError) -> BadInput | None:
    """The error of an unknown field that is a parameter of the spec's algorithm, partition, model or data set.

    None where no unknown field is one.
    """
    unknown = [
        str(one["loc"][0]) for one in error.errors() if one["type"] == "extra_forbidden" and len(one["loc"]) == 1
    ]
    for field in unknown:
        for place, known in _parameters_of(raw):
            if field in known:
                return BadInput(f"{field}: unknown field; did you mean {f'{place}.{field}'!r}?", field=field)
    return None


def _parameters_of(raw: Mapping[str, Any]) -> Iterator[tuple[str, Collection[str]]]:
    """Where a spec has parameters of what it names, and those that are known there."""
    with suppress(StrataError, ValidationError):
        named = AlgorithmSpec.model_validate(_named(raw.get("algorithm", {})))
        yield "algorithm.params", load_algorithm(named.name).params.model_fields
    yield "algorithm", AlgorithmSpec.model_fields
    with suppress(ValidationError):
        yield "partition", type(_PARTITION.validate_python(_named(raw.get("partition", "iid")))).model_fields
    yield "model", ModelSpec.model_fields
    yield "data", DataSpec.model_fields


def _named(value: Any) -> Any:
    """The long form of a value that may be given by its name alone."""
    return {"name": value} if isinstance(value, str) else value


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
