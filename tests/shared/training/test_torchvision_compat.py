"""torchvision is imported in one place only, and late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shared.training.torchvision_compat import torchvision

ROOT = Path(__file__).resolve().parents[3]
TRAINING = ROOT / "shared" / "training"


def test_torchvision_can_be_imported_with_the_cpu_build() -> None:
    assert torchvision().models.resnet18 is not None
    assert torchvision() is torchvision()


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


def test_heavy_packages_are_imported_when_they_are_needed() -> None:
    """Partitions need no torch; training modules import nothing else at the top."""
    heavy = ("torch", "torchvision", "sklearn", "matplotlib", "scipy")
    show = f"print(*(name for name in {heavy} if name in sys.modules))"
    code = f"import sys, shared.training.partition; {show}; import shared.training.loop, shared.training.models; {show}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout == "\ntorch\n"


def test_no_other_module_imports_torchvision() -> None:
    lines = [line.strip() for file in TRAINING.rglob("*.py") for line in file.read_text("utf-8").splitlines()]
    assert [line for line in lines if line.startswith(("import torchvision", "from torchvision"))] == []
