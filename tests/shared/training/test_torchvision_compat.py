"""torchvision is imported in one place only, and late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.training.torchvision_compat import torchvision

ROOT = Path(__file__).resolve().parents[3]
TRAINING = ROOT / "shared" / "training"


@pytest.mark.slow
def test_two_threads_may_make_the_first_call_at_the_same_time() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from torch.library import Library
from shared.training.torchvision_compat import torchvision

both, define = Barrier(2), Library.define

def waiting(library, schema, **further):
    with suppress(BrokenBarrierError):
        both.wait(3)  # for the other thread, which has seen that the operator is missing
    return define(library, schema, **further)

Library.define = waiting
with ThreadPoolExecutor(2) as pool:
    calls = [pool.submit(torchvision) for _ in range(2)]
print(calls[0].result() is calls[1].result())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "True\n", done.stderr


PROGRAM = """
import sys, shared.training.partition
SHOW
import shared.training.loop, shared.training.models as models
from shared.training.flops import training_flops
from shared.training.subnetworks.unit_graph import units_of
from shared.training.subnetworks.width_slices import accepts_shape
design = models.Design("cnn_digits", (1, 28, 28), 10)
training_flops(design), models.least_batch(design)
models.build_shapes(models.Design("resnet18", (3, 8, 8), 10))
model = models.built(models.Design("mobilenet_v1", (3, 16, 16), 10), 0)
assert accepts_shape(model, (2, 3, 8, 8)) and units_of(model, (3, 16, 16)).groups
SHOW
"""


@pytest.mark.slow
@pytest.mark.integration
def test_heavy_packages_are_imported_when_they_are_needed() -> None:
    """Partitions need no torch; training, counting and sub-networks need neither its compiler nor sympy."""
    heavy = ("torch", "torchvision", "torch._dynamo", "sympy", "sklearn", "matplotlib", "scipy")
    code = PROGRAM.replace("SHOW", f"print(*(name for name in {heavy} if name in sys.modules))")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout == "\ntorch\n"


def test_torchvision_is_imported_with_the_cpu_build_and_by_one_module_alone() -> None:
    assert torchvision() is torchvision()
    assert torchvision().models.resnet18 is not None
    lines = [line.strip() for file in TRAINING.rglob("*.py") for line in file.read_text("utf-8").splitlines()]
    assert [line for line in lines if line.startswith(("import torchvision", "from torchvision"))] == []
