"""Which fields of a spec fit the way in which its tiers wait (`sync`)."""

from __future__ import annotations

from typing import Any

from shared.spec.synchronisation import DeviceSync, EdgeSync, TierSync

WAITED_FOR = {
    "clock": "simulated",
    "client": "device",
    "schedule": "own_data",
    "select": "all",
    "round_deadline_s": None,
    "report_deadline_s": None,
    "late": "drop",
    "partial_work": False,
    "overselection": 0.0,
    "held_out_fraction": 0.0,
    "twins": False,
}
"""Fields that only mean something at an edge that waits for all tasks of a dispatch, with the values they must have."""


def check_sync(spec: Any) -> None:
    """Check that the modes of both tiers of an `ExperimentSpec` fit each other and the other fields.

    Raises:
        ValueError: the message begins with the name of the field at fault.
    """
    for tier, sync in spec.sync.tiers.items():
        _check_mode(tier, sync)
    _check_devices(spec, spec.sync.devices)
    _check_edges(spec, spec.sync.edges)
    if spec.most_edge_rounds > 1 or spec.sync.devices.staleness.scale == 1:
        return
    if spec.sends_means:
        what = "edge_upload: mean" if spec.edge_upload == "mean" else "edge_compression.up sends a mean, which"
        raise ValueError(
            f"{what} does not tell by how much devices' staleness shortens the step; use sums (edge_upload: sum, and "
            "edge_compression without up), edge_rounds above 1, or constant weights of sync.devices"
        )
    if spec.sync.edges.staleness.scale > 1:
        raise ValueError(
            "sync.edges.staleness: a sum that edges have weighted by staleness cannot be weighted once more and stay "
            "exact; use edge_rounds above 1, or constant weights at one tier"
        )


def _check_mode(tier: str, sync: TierSync) -> None:
    """Check that fields of one mode are not given with another."""
    if sync.asynchronous:
        return
    given = sync.model_dump(exclude_defaults=True)
    allowed = {"mode"}
    if isinstance(sync, EdgeSync) and sync.mode == "semi_synchronous":
        allowed |= {"staleness", "wanted", "deadline_s"}
    for name in sorted(given.keys() - allowed):
        raise ValueError(f"sync.{tier}.{name} has no meaning with mode: {sync.mode}")


def _check_devices(spec: Any, sync: DeviceSync) -> None:
    if sync.mode == "semi_synchronous" and spec.round_deadline_s is None and not spec.overselection:
        raise ValueError(
            "sync.devices: semi_synchronous needs round_deadline_s, or overselection for the first to answer"
        )
    if not sync.asynchronous:
        return
    for name, value in WAITED_FOR.items():
        if getattr(spec, name) != value:
            raise ValueError(f"{name} {getattr(spec, name)} needs sync.devices: synchronous")
    for name, given in (("overrun", spec.overrun), ("compression.down", spec.compression.down)):
        if given is not None:
            raise ValueError(f"{name} needs sync.devices: synchronous")


def _check_edges(spec: Any, sync: EdgeSync) -> None:
    if sync.mode == "synchronous":
        return
    for name in ("clock", "client"):
        if getattr(spec, name) != WAITED_FOR[name]:
            raise ValueError(f"{name} {getattr(spec, name)} needs sync.edges: synchronous")
    if sync.asynchronous and (sync.wanted is not None or sync.deadline_s is not None):
        raise ValueError("sync.edges.wanted and deadline_s need mode: semi_synchronous; asynchronous has a buffer")
    if sync.mode == "semi_synchronous" and sync.wanted is None and sync.deadline_s is None:
        raise ValueError("sync.edges: semi_synchronous needs wanted, deadline_s, or both")
    for name, wanted in (("wanted", sync.wanted), ("buffer", sync.buffer)):
        if spec.num_edges is not None and isinstance(wanted, int) and wanted > spec.num_edges:
            raise ValueError(f"sync.edges.{name}: {wanted} of {spec.num_edges} edges")


def edges_judge_quorum(spec: Any) -> bool:
    """Whether each edge of an `ExperimentSpec` needs the quorum of its own tasks, in place of the cloud over all.

    A client answers for itself; an asynchronous round has answers to orders of several rounds.
    """
    return bool(spec.client == "edge" or spec.sync.edges.mode != "synchronous")
