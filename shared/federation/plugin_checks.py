"""The kinds of plug-ins, and the packages that a spec uses; every tier must have the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.core.plugins import Kind, digest_of
from shared.federation.registry import ALGORITHMS
from shared.federation.selection import POLICIES
from shared.spec.experiment import ExperimentSpec
from shared.training.data.plugged import DATA_SOURCES
from shared.training.losses import LOSS_VALUES
from shared.training.metrics.catalogue import METRIC_VALUES
from shared.training.models import MODEL_FACTORIES
from shared.training.partition import PARTITIONERS

KINDS: tuple[Kind[Any], ...] = (
    ALGORITHMS,
    DATA_SOURCES,
    LOSS_VALUES,
    METRIC_VALUES,
    MODEL_FACTORIES,
    PARTITIONERS,
    POLICIES,
)
"""The kinds of values that a package can bring."""


def packages_of(spec: ExperimentSpec) -> dict[str, str]:
    """The digest of each plug-in package that brings something which the spec names."""
    local = spec.algorithm.local
    used = {
        ALGORITHMS.package_of(spec.algorithm.name),
        None if local is None else ALGORITHMS.package_of(local.name),
        DATA_SOURCES.package_of(spec.data.name),
        MODEL_FACTORIES.package_of(spec.model.name),
        PARTITIONERS.package_of(spec.partition.name),
        POLICIES.package_of(spec.select),
        None if spec.loss is None else LOSS_VALUES.package_of(spec.loss.name),
        *(METRIC_VALUES.package_of(metric.name) for metric in spec.metrics),
    }
    return {package: digest_of(package) for package in sorted(used - {None}, key=str) if package is not None}


def draws_freely(spec: ExperimentSpec) -> bool:
    """Whether the model, the loss or a metric is a user's: they may draw from the default generators, hooks may not."""
    loss = spec.loss is not None and LOSS_VALUES.package_of(spec.loss.name) is not None
    metrics = (METRIC_VALUES.package_of(metric.name) is not None for metric in spec.metrics)
    return loss or MODEL_FACTORIES.package_of(spec.model.name) is not None or any(metrics)


def differing_package(needed: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """What a node lacks, or has otherwise, of the packages that a spec needs; None if it has them."""
    for package, digest in sorted(needed.items()):
        if package not in found:
            return f"it lacks the plug-in {package} (STRATA_PLUGINS), which the cloud has as {digest[:12]}"
        if found[package] != digest:
            return f"its plug-in {package} is {found[package][:12]}, the cloud has {digest[:12]}"
    return None
