"""FedScale's measurements of devices: `client_device_capacity`, and the traces of `client_behave_trace`.

The first maps a client to its `computation` (milliseconds that a sample takes in inference; FedScale counts three times
that for training) and its `communication` (kbit/s, for both directions). The second maps a user to the seconds at which
the device becomes `active` and `inactive`, which repeat after `finish_time`; FedScale gives client n the n-th trace,
modulo their number. Both are pickled dictionaries, or the same as JSON.

Lai et al., FedScale: Benchmarking Model and System Performance of Federated Learning at Scale, ICML 2022.
https://github.com/SymbioticLab/FedScale (benchmark/dataset/data/device_info)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.core.field_errors import told
from shared.simulation import REFERENCE_FLOPS
from shared.simulation.availability import MAX_INTERVALS, Trace
from shared.simulation.device_file import AVAILABILITY
from strata.measured.conversion import Converted, drawn, float_of, mapping_in, number_of

MOST_INSTANTS = 10_000_000
"""Most instants in the traces of the rows together."""
TRAINING = 3.0
"""Passes of inference that FedScale counts for a sample of training."""


def converted(
    capacity: Path, traces: Path | None, n_rows: int, seed: int, forward_flops: float | None = None
) -> Converted:
    """Rows of some of FedScale's devices, drawn by seed.

    Args:
        capacity: the file with computation and communication.
        traces: that of the traces; None leaves availability out.
        n_rows: number of devices.
        seed: of the draw.
        forward_flops: operations of inference on one sample of the measured model; None takes a sample of training
            there for one of the reference model here.

    Raises:
        BadInput: a file cannot be read, or has another form.
    """
    entries = mapping_in(capacity)
    known = {key: row for key, value in entries.items() if (row := _row(value, forward_flops))}
    if not known:
        raise BadInput(f"{capacity}: no entry has `computation` and `communication` above 0")
    keys = drawn(list(known), n_rows, seed)
    flops = "a sample of training there counts as one of the reference model here"
    if forward_flops is not None:
        flops = f"inference on a sample of the measured model has {forward_flops:g} operations"
    remarks = [
        f"{len(keys):,} of {len(known):,} devices, drawn with seed {seed}",
        f"compute: training takes {TRAINING:g} times as long as the measured inference; {flops}",
        "bandwidth: one figure for both directions; latency was not measured",
    ]
    if len(known) < len(entries):
        n = len(entries) - len(known)
        remarks.append(f"left out: {n:,} entries without `computation` and `communication` above 0")
    found = Converted(("compute_sps", "up_bps", "down_bps"), [known[key] for key in keys], remarks)
    return found if traces is None else _with_traces(found, keys, traces)


def _row(value: Any, forward_flops: float | None) -> dict[str, float] | None:
    """The figures of a device; None if one is missing."""
    if not isinstance(value, Mapping):
        return None
    inference_ms, kbps = number_of(value.get("computation")), number_of(value.get("communication"))
    if inference_ms is None or kbps is None:
        return None
    a_second = 1000 / inference_ms
    compute_sps = a_second / TRAINING if forward_flops is None else a_second * forward_flops / REFERENCE_FLOPS
    return {"compute_sps": compute_sps, "up_bps": 1000 * kbps, "down_bps": 1000 * kbps}


def _with_traces(found: Converted, keys: list[Any], path: Path) -> Converted:
    traces = list(mapping_in(path).values())
    n_fixed, rows, n_intervals, n_instants = 0, list[Mapping[str, Any]](), 0, 0
    for number, (key, row) in enumerate(zip(keys, found.rows, strict=True)):
        begins, ends, period_s = _instants(traces[_client(key, number) % len(traces)], path)
        n_instants += len(begins)
        if n_instants > MOST_INSTANTS:
            raise BadInput(f"{path}: the traces of {len(keys):,} devices have more than {MOST_INSTANTS:,} instants")
        trace, fixed = _trace(begins, ends, period_s, path)
        n_fixed += fixed
        n_intervals += len(trace.traces[0])
        rows.append({**row, AVAILABILITY: trace})
    if n_intervals > MAX_INTERVALS:
        fit = max(len(rows) * MAX_INTERVALS // n_intervals, 1)
        cause = f"{len(rows):,} devices have {n_intervals:,} on-intervals, of which a spec holds {MAX_INTERVALS:,}"
        raise BadInput(f"{cause}; try --rows {fit}")
    remarks = [*found.remarks, f"availability: client n has the n-th of {len(traces):,} traces, modulo their number"]
    if n_fixed:
        remarks.append(f"on-intervals that were empty, or overlapped and were joined: {n_fixed:,}")
    return Converted((*found.columns, AVAILABILITY), rows, remarks)


def _client(key: Any, number: int) -> int:
    """The number of a client by its key; that of its row where the key is none."""
    if isinstance(key, str) and key.isdecimal() and len(key) < 20:
        return int(key)
    return key if isinstance(key, int) and key >= 0 else number


def _instants(value: Any, path: Path) -> tuple[list[Any], list[Any], float]:
    """The instants at which a device becomes active and inactive, and the period of its trace."""
    period_s = number_of(value.get("finish_time")) if isinstance(value, Mapping) else None
    if period_s is None or not all(isinstance(value.get(key), list) for key in ("active", "inactive")):
        raise BadInput(f"{path}: a trace has no `active`, `inactive` and `finish_time`")
    return value["active"], value["inactive"], period_s


def _trace(begins: list[Any], ends: list[Any], period_s: float, path: Path) -> tuple[Trace, int]:
    """The on-intervals of a device, and the number of those that were left out or joined."""
    ends = [*ends[: len(begins)], *[period_s] * (len(begins) - len(ends))]  # on until the trace ends
    times = [(float_of(a), float_of(b)) for a, b in zip(begins, ends, strict=True)]
    known = [(a, b) for a, b in times if a is not None and b is not None and not math.isnan(a + b)]
    if len(known) < len(times):
        raise BadInput(f"{path}: an instant of a trace is not a number")
    pairs = sorted((max(a, 0.0), min(b, period_s)) for a, b in known)
    joined: list[tuple[float, float]] = []
    for begin, end in pairs:
        if begin < end and joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif begin < end:
            joined.append((begin, end))
    try:
        return Trace(traces=(tuple(joined),), period_s=period_s), len(pairs) - len(joined)
    except ValidationError as error:
        raise BadInput(f"{path}: a trace: {told(error)}") from None
