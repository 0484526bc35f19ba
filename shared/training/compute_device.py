"""What a client computes on: the CPU, or a GPU by CUDA, as the spec's `device` says.

Messages, states and sums lie in the CPU's memory. What a visit works with is brought to its processor before the hooks
and fetched after them, so that an algorithm's tensor algebra runs there without knowing; random streams stay on the CPU
and are the same everywhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch

from shared.core.errors import BadInput
from shared.core.randomness import reseed
from shared.core.records import with_tensors

DeviceName = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class ComputeDevice:
    """Where tensors are computed with; of several GPUs the first that the process sees (CUDA_VISIBLE_DEVICES)."""

    device: torch.device

    @property
    def is_cpu(self) -> bool:
        """Whether nothing has to be moved."""
        return self.device.type == "cpu"

    def to_device(self, value: Any) -> Any:
        """A record, or values in lists and maps, with its tensors on this processor."""
        return value if self.is_cpu else with_tensors(value, lambda tensor: tensor.to(self.device))

    def to_cpu(self, value: Any) -> Any:
        """The same with its tensors in the CPU's memory: what leaves a visit."""
        return value if self.is_cpu else with_tensors(value, lambda tensor: tensor.cpu())

    def seed(self, seed: int) -> None:
        """Seed torch's default generators, from which dropout draws."""
        reseed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def make_repeatable(self) -> None:
        """Ask for kernels that give the same bits each time; on a GPU also for whole float32 in place of TF32.

        Switched off again on the CPU, where it would choose other kernels: a run's bits do not depend on whether its
        process had a run on a GPU before.
        """
        on_gpu = self.device.type == "cuda"
        if on_gpu != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(on_gpu, warn_only=True)  # warns where a kernel has no such version
        if on_gpu:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False


def compute_device_of(name: DeviceName) -> ComputeDevice:
    """The processor of a spec's `device`.

    Raises:
        BadInput: there is no CUDA in this process; says why.
    """
    if name == "cuda" and (missing := cuda_missing()) is not None:
        raise BadInput(f"device: cuda: {missing}", field="device")
    return ComputeDevice(torch.device(name))


def cuda_missing() -> str | None:
    """Why this process cannot compute by CUDA; None where it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU and driver that it can use"
    return None


def gpu_model() -> str | None:
    """The GPU that this process computes on, with the versions of CUDA and cuDNN that torch uses; None without one."""
    if cuda_missing() is not None:
        return None
    cudnn: Any = torch.backends.cudnn
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"
