"""What the form offers and warns of beside the spec itself: known names, and why a run may not start."""

from __future__ import annotations

from pathlib import Path

from shared.core.formatting import counted
from shared.spec.experiment import ExperimentSpec
from shared.training.data.plugged import DATA_SOURCES
from shared.training.data.sources import DATASETS, folder_of
from shared.training.models.zoo import MODEL_FACTORIES
from shared.training.partition import PARTITIONERS
from shared.training.specs import DataSpec


def known_names() -> dict[str, list[str]]:
    """The names that a field of the spec can have, built-in ones and those of plug-ins, by field."""
    found = {"data": DATA_SOURCES.names(), "model": MODEL_FACTORIES.names(), "partition": PARTITIONERS.names()}
    return {field: sorted(names) for field, names in found.items()}


def warnings_of(spec: ExperimentSpec, *, n_edges: int, n_devices: int, data_dir: Path | None) -> list[str]:
    """Why a run of a spec would wait, and perhaps fail, if it were started now.

    Args:
        spec: the experiment.
        n_edges: live edges.
        n_devices: devices that live agents can host.
        data_dir: the cloud's folder of data.
    """
    wait = f"the run waits up to {spec.timeouts.ready_s:g} s (timeouts.ready_s) for more, then fails."
    found = []
    if n_edges < (wanted := spec.num_edges or 1):
        found.append(f"num_edges: {_connected(n_edges, 'edge')}, {wanted} wanted; {wait}")
    if n_devices < spec.min_devices:
        found.append(f"min_devices: {_connected(n_devices, 'device')}, {spec.min_devices} needed; {wait}")
    elif spec.num_devices is not None and n_devices < spec.num_devices:
        fewer = "the run starts once no further one has registered for a while; the agents there share all"
        wanted_devices = f"{spec.num_devices} wanted; {fewer} {spec.num_devices} devices, more than they have room for."
        found.append(f"num_devices: {_connected(n_devices, 'device')}, {wanted_devices}")
    missing = missing_data(spec.data, data_dir)
    return [*found, missing] if missing else found


def _connected(n: int, what: str) -> str:
    return f"{counted(n, what)} {'is' if n == 1 else 'are'} connected"


def missing_data(data: DataSpec, data_dir: Path | None) -> str | None:
    """What is missing of a data set that cannot be downloaded; None if nothing is, as far as the cloud can see."""
    where = data_dir or "the folder that STRATA_DATA_DIR names"
    if data.file is not None:
        there = data_dir is not None and (data_dir / data.file).exists()
        return None if there else f"data.file: {data.file} is not in {where}; the run would fail."
    source = DATASETS.get(data.name)
    if source is None or source.fetch is not None or folder_of(data.name, data_dir) is not None:
        return None
    if data_dir is not None and (data_dir / f"{data.name}.npz").is_file():
        return None
    return f"data.name: {data.name} is not in {where} and cannot be downloaded; the run would fail."
