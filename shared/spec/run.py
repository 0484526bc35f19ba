"""`RunSpec`: a spec as people write it, which asks for more than the experiment itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.core.validation import no_repeats
from shared.spec.experiment import ExperimentSpec

Tracker = Literal["tensorboard", "mlflow"]
Trackers = Annotated[tuple[Tracker, ...], Field(max_length=2), AfterValidator(no_repeats)]


class RunSpec(ExperimentSpec):
    """An experiment, and who is told of its run: that changes nothing of it, and no other tier hears of it.

    Attributes:
        tracking: where the cloud brings the run's figures as it goes.
    """

    tracking: Trackers = ()

    @model_validator(mode="before")
    @classmethod
    def _one_tracker(cls, raw: Any) -> Any:
        """`tracking: mlflow` stands for `[mlflow]`."""
        if isinstance(raw, Mapping) and isinstance(raw.get("tracking"), str):
            return {**raw, "tracking": [raw["tracking"]]}
        return raw

    @property
    def experiment(self) -> ExperimentSpec:
        """What is run, in every tier."""
        return ExperimentSpec.model_validate(self.model_dump(exclude={"tracking"}))

    def digest(self) -> str:
        """That of the experiment."""
        return self.experiment.digest()
