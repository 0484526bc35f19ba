"""The device that clients compute on: the CPU, or a GPU through CUDA, as the spec's `device` says.

Messages, states and sums lie in the CPU's memory. A visit copies its inputs to the device before it calls the hooks and
copies the results back afterwards, so that algorithms are written without regard to devices. Random streams stay on the
CPU, so that they are the same everywhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch

from shared.core.errors import BadInput
from shared.core.randomness import reseed, reseed_all
from shared.core.tensor_records import with_tensors

DeviceName = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class ComputeDevice:
    """The device of a run's tensors; with several GPUs, the first that the process sees (CUDA_VISIBLE_DEVICES)."""

    device: torch.device

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the CPU, so that no tensor has to be copied."""
        return self.device.type == "cpu"

    def to_device(self, value: Any) -> Any:
        """Returns a record, or lists and maps of values, with its tensors on this device."""
        return value if self.is_cpu else with_tensors(value, lambda tensor: tensor.to(self.device))

    def to_cpu(self, value: Any) -> Any:
        """Returns a record, or lists and maps of values, with its tensors in the CPU's memory."""
        return value if self.is_cpu else with_tensors(value, lambda tensor: tensor.cpu())

    def seed(self, seed: int, *, all_generators: bool = False) -> None:
        """Seeds torch's default generators, from which dropout draws; if wanted also those of numpy and Python."""
        (reseed_all if all_generators else reseed)(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def make_repeatable(self) -> None:
        """Selects deterministic kernels and, instead of TF32, full float32 precision on a GPU.

        On the CPU, where deterministic mode would select other kernels, it is switched off again: a run's bits must not
        depend on whether its process ran on a GPU before.
        """
        on_gpu = self.device.type == "cuda"
        if on_gpu != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(
                on_gpu, warn_only=True
            )  # warns about kernels without a deterministic version
        if on_gpu:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
            deterministic: Any = torch.utils.deterministic
            deterministic.fill_uninitialized_memory = False  # helps debugging, and takes much of a small model's time


def compute_device_of(name: DeviceName) -> ComputeDevice:
    """Returns the compute device of a spec's `device`.

    Raises:
        BadInput: this process cannot use CUDA; the message says why.
    """
    if name == "cuda" and (missing := cuda_missing()) is not None:
        raise BadInput(f"device: cuda: {missing}", field="device")
    return ComputeDevice(torch.device(name))


def cuda_missing() -> str | None:
    """Returns why this process cannot use CUDA, None if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU and driver that it can use"
    return None


def gpu_model() -> str | None:
    """Returns this process's GPU with the versions of CUDA and cuDNN that torch uses, None without a GPU."""
    if cuda_missing() is not None:
        return None
    cudnn: Any = torch.backends.cudnn
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"
