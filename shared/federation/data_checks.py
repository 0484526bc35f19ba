"""Checks that a spec's methods can work on its data, before anything is trained."""

from __future__ import annotations

from shared.core.errors import BadInput
from shared.federation.hooks import Algorithm
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset


def check_data(spec: ExperimentSpec, data: Dataset, algorithm: Algorithm, local: Algorithm) -> None:
    """Checks that algorithm, local objective and augmentation are defined for the data's samples and targets.

    Raises:
        BadInput: one is not; names the field and what it is defined for.
    """
    for field, one in (("algorithm.name", algorithm), ("algorithm.local", local)):
        _check_samples(one, data, field)
        if one.targets is not None and data.target.kind not in one.targets:
            known = " and ".join(one.targets)
            cause = f"{one.name} is defined for targets of {known}, those of {data.name} are {data.target.kind}"
            raise BadInput(cause, field=field)
    if spec.augment is not None and not data.sample.images:
        cause = f"{spec.augment.name} changes images, the samples of {data.name} are {data.sample.what}"
        raise BadInput(cause, field="augment")


def _check_samples(algorithm: Algorithm, data: Dataset, field: str) -> None:
    needs, what = algorithm.samples, data.sample.what
    if needs == "images" and not data.sample.images:
        raise BadInput(f"{algorithm.name} is defined for images, the samples of {data.name} are {what}", field=field)
    if needs == "images" and data.normalisation is not None:
        cause = f"{algorithm.name} takes images scaled to -1..1, {data.name} has a normalisation of its own"
        raise BadInput(cause, field=field)
    if needs == "numbers" and data.sample.dtype != "float32":
        raise BadInput(f"{algorithm.name} is defined for numbers, the samples of {data.name} are {what}", field=field)
