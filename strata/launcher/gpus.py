"""Which GPU an agent uses, where several agents of one machine share its GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping

from shared.core.errors import BadInput

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Of the driver: the GPUs that a process sees, separated by commas; batch systems set it."""
_LIST_S = 20.0


def visible_gpus(env: Mapping[str, str]) -> list[str]:
    """The GPUs that a process with this environment may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if VISIBLE in env:
        return [name for part in env[VISIBLE].split(",") if (name := part.strip()) and name != "-1"]
    try:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_S, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return said.split()


def agents_on_gpus(agents_per_gpu: int, devices: int) -> int | None:
    """The number of agents that share this machine's GPUs, one per device at most; None where none are shared."""
    return (min(len(visible_gpus(os.environ)) * agents_per_gpu, devices) or None) if agents_per_gpu else None


def shared_gpus(env: Mapping[str, str], agents_per_gpu: int) -> Callable[[int], dict[str, str]]:
    """Returns what says the variables of an agent by its place among those of a machine: the GPU that it uses.

    Args:
        env: of the machine's agents.
        agents_per_gpu: how many use one GPU, those of neighbouring places; 0 = each may use all.

    Raises:
        BadInput: GPUs are to be shared, and there are none.
    """
    if not agents_per_gpu:
        return lambda place: {}
    gpus = visible_gpus(env)
    if not gpus:
        why = f"no GPU is visible here ({VISIBLE}, nvidia-smi)"
        raise BadInput(f"agents_per_gpu {agents_per_gpu}: {why}", field="agents_per_gpu")

    def variables(place: int) -> dict[str, str]:
        return {VISIBLE: gpus[place // agents_per_gpu % len(gpus)]}

    return variables
