"""The bodies of `/algorithms`."""

from __future__ import annotations

from typing import Any

from shared.core.records import Record


class AlgorithmInfo(Record):
    """One algorithm with the JSON schema of its parameters."""

    name: str
    paper: str
    params: dict[str, Any]


class AlgorithmList(Record):
    """`GET /algorithms`."""

    algorithms: tuple[AlgorithmInfo, ...]
