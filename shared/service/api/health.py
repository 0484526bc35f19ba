"""The body of `/healthz` and `/readyz`."""

from __future__ import annotations

from typing import Literal

from shared.core.records import Record


class Health(Record):
    """`GET /healthz` and `GET /readyz`; `missing` names what the tier still lacks, `warnings` what may go wrong."""

    status: Literal["ok", "not_ready"]
    tier: str
    version: str
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
