"""`RunSpec`: an experiment's description together with what a user wants of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.core.validation import no_repeats
from shared.spec.experiment import ExperimentSpec

Tracker = Literal["tensorboard", "mlflow"]
Trackers = Annotated[tuple[Tracker, ...], Field(max_length=2), AfterValidator(no_repeats)]


class RunSpec(ExperimentSpec):
    """An experiment and the trackers that its run reports to. Trackers change no result, and only the cloud knows them.

    Attributes:
        tracking: the trackers to which the cloud sends the run's figures while it goes on.
    """

    tracking: Trackers = ()

    @model_validator(mode="before")
    @classmethod
    def _one_tracker(cls, raw: Any) -> Any:
        """Expand the short form: `tracking: mlflow` is `tracking: [mlflow]`."""
        if isinstance(raw, Mapping) and isinstance(raw.get("tracking"), str):
            return {**raw, "tracking": [raw["tracking"]]}
        return raw

    @property
    def experiment(self) -> ExperimentSpec:
        """The experiment alone, as every tier gets it."""
        return ExperimentSpec.model_validate(self.model_dump(exclude={"tracking"}))

    def digest(self) -> str:
        """Return the digest of the experiment."""
        return self.experiment.digest()
