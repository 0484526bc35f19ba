"""How to reproduce a run bit for bit: what must be equal, and which losses a fault-free run must repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from shared.core.errors import NotFound
from shared.core.field_errors import told
from shared.results.manifest import Manifest
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo

_BY_SPEC = frozenset({"unavailable", "busy", "dropped", "left_out"})
"""Reasons for which the spec itself loses contributions: another run of it loses them too."""


@dataclass(frozen=True)
class Rerun:
    """How to run something again.

    Attributes:
        equal: what must be equal for the same bits, by name.
        losses: the field of the spec that repeats what faults lost, as YAML; empty where they lost nothing.
        repeatable: whether a second run can give the same bits at all.
        model_sha256: of the model that must come out.
    """

    equal: dict[str, str]
    losses: str
    repeatable: bool
    model_sha256: str | None


def rerun(info: RunInfo, manifest: Manifest | None, rounds: Sequence[RoundInfo]) -> Rerun:
    """What is known of it; without a manifest the spec's digest alone."""
    equal = {"spec (sha256)": info.spec.digest()}
    if manifest is not None:
        given = {"data (sha256)": manifest.data_digest, "devices and their data (sha256)": manifest.population_digest}
        given |= {"initial model (sha256)": manifest.init_digest}
        equal |= {name: digest for name, digest in given.items() if digest}
        equal |= {"versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items())}
        equal |= {"CPU": manifest.cpu, **({"GPU": manifest.gpu} if manifest.gpu else {})}
        for change in manifest.changes:
            equal |= {f"after round {change.after_round}": "; ".join(change.differences)}
    deadlines = (info.spec.round_deadline_s, info.spec.report_deadline_s)
    in_time = info.spec.clock == "simulated" or deadlines == (None, None)
    repeatable = in_time and not (manifest and manifest.changes)
    return Rerun(equal, _losses(rounds), repeatable, info.model_sha256)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a results folder; None before the first round.

    Raises:
        NotFound: the file cannot be read.
    """
    path = folder / "manifest.json"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise NotFound(f"{path} is of another version: {told(error)}") from None


def _losses(rounds: Sequence[RoundInfo]) -> str:
    found: list[dict[str, Any]] = []
    for row in rounds:
        lost = [failure for failure in row.failures if failure.reason not in _BY_SPEC]
        seats = {seat for failure in lost for seat in (failure.seat, *failure.seats) if seat is not None}
        if seats and row.kind == "train":
            found.append({"round_no": row.round_no, "seats": sorted(seats)})
    return yaml.safe_dump({"losses": found}, default_flow_style=None, sort_keys=False) if found else ""
