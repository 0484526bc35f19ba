"""Whether the trackers that a spec names can be told anything here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shared.core.errors import BadInput, NotFound
from shared.spec.run import Tracker, Trackers
from shared.tracking.mlflow import tracking_uri
from shared.tracking.tensorboard import check_tensorboard

_CHECKS: Mapping[Tracker, Callable[[], object]] = {"tensorboard": check_tensorboard, "mlflow": tracking_uri}


def check_trackers(wanted: Trackers) -> None:
    """Raise if one of these cannot be told anything here, whatever becomes of the run.

    Raises:
        BadInput: names the field `tracking` and what is missing.
    """
    for tracker in wanted:
        try:
            _CHECKS[tracker]()
        except (BadInput, NotFound) as error:
            raise BadInput(f"tracking: {error.detail}", field="tracking") from None
