"""MobiPerf's measurements of mobile networks, as M-Lab publishes them.

A file is a list of measurements in JSON, or has one a line. Of each the `type`, `parameters`, `values`, and
`device_properties` (or `properties`) count. `tcpthroughput` has `tcp_speed_results`, samples in kbit/s, of the
direction `dir_up`; `ping` has `mean_rtt_ms`. Values may be texts. A device has the median of its measurements, each
with the median of its samples, and half of the round-trip time as its latency.

https://www.measurementlab.net/tests/mobiperf, https://github.com/Mobiperf/MobiPerf
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from shared.core.errors import BadInput
from strata.measured.conversion import MOST_BYTES, Converted, drawn, number_of
from strata.measured.read import text_of

COLUMNS = ("up_bps", "down_bps", "latency_s")
Found = tuple[str, str, float]
"""The device, the column and the figure of one measurement."""


def converted(paths: Sequence[Path], n_rows: int, seed: int, network: str | None = None) -> Converted:
    """Rows of the devices in these files, or of some of them, drawn by seed.

    Args:
        paths: the files.
        n_rows: most devices.
        seed: of the draw.
        network: only measurements on this type of network, such as WIFI.

    Raises:
        BadInput: a file cannot be read, or none has a measurement that counts.
    """
    by_device: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    n_all = n_unused = 0
    networks = set[str]()
    for path in paths:
        for number, raw in enumerate(_measurements(path), 1):
            n_all += 1
            networks.add(_network(raw))
            found = _figure(raw, f"{path.name} {number}", network)
            n_unused += found is None
            if found is not None:
                device, column, value = found
                by_device[device][column].append(value)
    columns = tuple(column for column in COLUMNS if any(column in own for own in by_device.values()))
    whole = {device: own for device, own in by_device.items() if own.keys() >= {*columns}}
    if network is not None and network.lower() not in map(str.lower, networks):
        there = ", ".join(sorted(networks - {""})[:10])
        why = f"there are {there}" if there else "none has a `network_type`"
        raise BadInput(f"--network {network}: no measurement is on it; {why}")
    if not whole:
        names = f" of {', '.join(columns)} each" if columns else ""
        raise BadInput(f"{n_all:,} measurements give no device its figures{names}")
    keys = drawn(sorted(whole), n_rows, seed)
    rows = [{column: median(whole[key][column]) for column in columns} for key in keys]
    remarks = [f"{len(keys):,} of {len(whole):,} devices, drawn with seed {seed}; medians of their measurements"]
    if n_unused:
        where = "" if network is None else f" on the network {network}"
        remarks.append(f"{n_unused:,} of {n_all:,} measurements are no successful throughput or ping{where}")
    if len(whole) < len(by_device):
        n = len(by_device) - len(whole)
        remarks.append(f"left out: {n:,} devices without a measurement of each of {', '.join(columns)}")
    if missing := [column for column in COLUMNS if column not in columns]:
        remarks.append(f"not measured: {', '.join(missing)}")
    return Converted(columns, list(rows), remarks)


def _measurements(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the measurements of a file."""
    text = text_of(path, MOST_BYTES)
    try:
        whole = text.lstrip()[:1] == "["
        listed = json.loads(text) if whole else [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is neither a list in JSON nor has one measurement in JSON a line: {error}") from None
    for number, each in enumerate(listed, 1):
        if not isinstance(each, Mapping):
            raise BadInput(f"{path}: measurement {number} is not an object of JSON")
        yield each


def _figure(raw: Mapping[str, Any], name: str, network: str | None) -> Found | None:
    """What a measurement says; None if it failed, is of another type, or of another network. `name` is its own."""
    if raw.get("success") is False or (network is not None and _network(raw).lower() != network.lower()):
        return None
    about = _about(raw)
    values, parameters = _fields(raw.get("values", raw)), _fields(raw.get("parameters", {}))
    device = str(raw.get("device_id") or _fields(about.get("device_info", {})).get("id") or name)
    if "tcp_speed_results" in values:
        kbps = _middle(values["tcp_speed_results"])
        column = "up_bps" if str(parameters.get("dir_up")).lower() in ("true", "up") else "down_bps"
        return None if kbps is None else (device, column, 1000 * kbps)
    rtt_ms = number_of(values.get("mean_rtt_ms"))
    return None if rtt_ms is None else (device, "latency_s", rtt_ms / 2000)


def _about(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a measurement says about its device."""
    return _fields(raw.get("device_properties") or raw.get("properties"))


def _network(raw: Mapping[str, Any]) -> str:
    """The type of network that a measurement names, if it does."""
    return str(_about(raw).get("network_type", ""))


def _fields(raw: Any) -> Mapping[str, Any]:
    """A mapping, or a list of mappings with a key each, as one mapping."""
    if isinstance(raw, list):
        return {key: value for each in raw if isinstance(each, Mapping) for key, value in each.items()}
    return raw if isinstance(raw, Mapping) else {}


def _middle(samples: Any) -> float | None:
    """The median of the samples of a throughput, which may be a text of JSON."""
    if isinstance(samples, str):
        try:
            samples = json.loads(samples)
        except (ValueError, RecursionError):
            return None
    found = [number for each in samples if (number := number_of(each)) is not None] if isinstance(samples, list) else []
    return median(found) if found else None
