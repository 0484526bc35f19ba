"""What is written down of an experiment, so that its model can be used elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shared.core.errors import BadInput
from shared.core.plugins import digest_of
from shared.core.tensor_records import TensorMap
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.training.models import MODEL_FACTORIES
from shared.training.preprocessing import ModuleDesign, Preprocessing


@dataclass(frozen=True)
class Trained:
    """The models of a run, by the names under which they can be downloaded, and what their use needs.

    Attributes:
        preprocessing: None if it cannot be written down; `why_not` then says why.
    """

    models: Mapping[str, TensorMap]
    preprocessing: Preprocessing | None
    why_not: str = ""

    @classmethod
    def of(cls, experiment: Experiment, ctx: Context, state: Any) -> Self:
        """Returns the models after a round, see `preprocessing_of`."""
        models = experiment.algorithm.cloud.models(ctx, state)
        try:
            return cls(models, preprocessing_of(experiment, ctx, state))
        except BadInput as error:
            return cls(models, None, error.detail)


def preprocessing_of(experiment: Experiment, ctx: Context, state: Any) -> Preprocessing:
    """Returns the preprocessing of a run's samples, with which its global model has its accuracy.

    Args:
        experiment: of the run.
        ctx: of its last round.
        state: the algorithm's state at the cloud after it.

    Raises:
        BadInput: the algorithm changes samples by code of its own, which cannot be written down.
    """
    wanted = experiment.spec.model
    plugged = MODEL_FACTORIES.plugged().get(wanted.name)
    module = ModuleDesign(
        name=wanted.name,
        params=wanted.params,
        projection=wanted.projection,
        width=wanted.width,
        package=plugged.package if plugged else None,
        package_sha256=digest_of(plugged.package) if plugged else None,
    )
    transform = experiment.algorithm.cloud.prepare(ctx, state, None)
    return Preprocessing.of(experiment.spec.data, experiment.data, module, transform)
