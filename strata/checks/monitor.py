"""Hooks that are called twice: they may not change what they are given, and have to give the same answer again."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from shared.core.records import Record
from shared.core.tensors import bytes_of
from shared.federation.hooks import Algorithm

_PLAIN = (str, int, float, type(None))


class CheckFailed(Exception):
    """A value does not keep the contract of its kind; the message says how."""


def require(holds: bool, cause: str) -> None:
    """Check a condition.

    Raises:
        CheckFailed: it does not hold, for this cause.
    """
    if not holds:
        raise CheckFailed(cause)


@dataclass
class Monitor:
    """What is seen of an algorithm in rounds.

    Attributes:
        encoded: all records encoded, with their bytes.
        states: the types of states that hooks return.
        faults: contract violations of hooks.
    """

    encoded: list[tuple[Record, bytes]] = field(default_factory=list)
    states: set[type] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


class MonitoredHooks:
    """Hooks that execute every call twice: inputs must not change, and both results must be equal."""

    def __init__(self, tier: str, hooks: Any, monitor: Monitor) -> None:
        self.tier, self.hooks, self.monitor = tier, hooks, monitor

    def __getattr__(self, name: str) -> Any:
        hook = getattr(self.hooks, name)

        def call(*args: Any) -> Any:
            before = [leaves(arg) for arg in args]
            found, again = hook(*args), hook(*args)
            self.monitor.states.add(type(getattr(found, "state", None)))
            if [leaves(arg) for arg in args] != before:
                self.monitor.faults.append(f"{name} changed its input")
            if leaves(found) != leaves(again):
                self.monitor.faults.append(f"{name} gave another answer the second time")
            for attribute in vars(self.hooks):
                where = f"its record `{self.tier}_state`"
                self.monitor.faults.append(
                    f"{self.tier}: a hook sets self.{attribute}; what it keeps belongs in {where}"
                )
            return found

        return call


def with_monitor(algorithm: Algorithm, monitor: Monitor) -> Algorithm:
    """An algorithm whose hooks are monitored."""
    tiers: dict[str, Any] = {
        tier: MonitoredHooks(tier, getattr(algorithm, tier), monitor) for tier in ("cloud", "edge", "device")
    }
    return replace(algorithm, **tiers)


def leaves(value: Any) -> Any:
    """A value as bytes and plain values, for comparison."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Record):
        return type(value).__name__, {name: leaves(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), bytes(bytes_of(value))
    if isinstance(value, dict):
        return {key: leaves(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [leaves(item) for item in value]
    if is_dataclass(value) and not hasattr(value, "fit"):
        return {item.name: leaves(getattr(value, item.name)) for item in fields(value)}
    return type(value).__name__
