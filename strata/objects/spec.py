"""`strata.Spec`: a spec that is written in Python."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from shared.core.validation import explain
from shared.federation.population.derivation import check_counts
from shared.federation.spec_parser import check_names
from shared.spec.run import RunSpec


class Spec(RunSpec):
    """An experiment, and what is wanted of its run; the fields of a spec's file, with the same short forms.

    `Spec(data="digits", algorithm={"name": "fedprox", "params": {"mu": 0.1}}, lr=0.1)` is checked at once: types and
    bounds of fields, how they fit together, and every name. A spec is frozen; `replace` returns a changed one.

    Raises:
        BadInput: a field is wrong; `field` is its path, and of an unknown one the message names the nearest known.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            spec = handler(raw)
        except ValidationError as error:
            raise explain(error, cls) from None
        check_names(spec)
        check_counts(spec)
        return spec
