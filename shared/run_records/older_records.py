"""Records of runs that earlier versions wrote, in the form of this one where that loses nothing."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from shared.run_records.runs import RunInfo

_AVERAGE_EVERY = {"round": "visit", "epoch": "epoch", "step": "step"}
"""`sync` of a spec named when the edge averages, which is `average_every` since `sync` says how tiers wait."""


def run_of(content: bytes) -> RunInfo:
    """Returns the run that a `run.json` of this version, or of one before it, records.

    Raises:
        ValidationError: it is of another version, or damaged.
    """
    try:
        return RunInfo.model_validate_json(content)
    except ValidationError:
        newer = _renewed(content)
        if newer is None:
            raise
        return RunInfo.model_validate_json(newer)


def _renewed(content: bytes) -> str | None:
    """The record in this version's form; None of one that has no earlier form that is known."""
    try:
        record: Any = json.loads(content)
        spec = record["spec"]
        average_every = _AVERAGE_EVERY[spec.pop("sync")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return json.dumps({**record, "spec": {**spec, "average_every": average_every}})
