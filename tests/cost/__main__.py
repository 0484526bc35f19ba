"""What targets of the Makefile cost: CPU seconds of all their processes, as multiples of `import torch`.

    python -m tests.cost [TARGET...]

Machines differ threefold in speed, a machine's CPU seconds hardly by the hour: the import is measured before and after
each target. Below the totals stand the files that cost most.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SHOWN = 40


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose parent ends, so that it waits for them too (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_s(command: list[str], env: dict[str, str]) -> tuple[float, int]:
    """CPU seconds of a command and all the processes that it starts, and its exit status."""
    before = os.times()
    first = subprocess.Popen(command, env=env)
    status = 0
    while True:
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == first.pid:
            status = os.waitstatus_to_exitcode(ended)
            first.returncode = status
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system, status


def import_s() -> float:
    """CPU seconds of `python -c 'import torch'`: the least of three."""
    return min(cpu_s([sys.executable, "-c", "import torch"], dict(os.environ))[0] for _ in range(3))


def measure(target: str, folder: Path) -> int:
    """Run a target, print its cost, and answer with its status."""
    lines = folder / f"{target}.ndjson"
    unit = import_s()
    env = {**os.environ, "TEST_COST": str(lines)}
    spent, status = cpu_s(["make", target], env)
    unit = (unit + import_s()) / 2
    print(f"\n{target}: {spent:.0f} CPU s = {spent / unit:.0f} imports of torch ({unit:.2f} s); exit status {status}")
    costs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for line in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else ():
        part = json.loads(line)
        for place, key in enumerate(("self_s", "children_s", "tests")):
            costs[part["file"]][place] += part[key]
    print(f"{'imports':>8} {'self':>7} {'children':>8} {'tests':>6}  file")
    for name, (own, theirs, tests) in sorted(costs.items(), key=lambda item: -sum(item[1][:2]))[:_SHOWN]:
        print(f"{(own + theirs) / unit:8.2f} {own / unit:7.2f} {theirs / unit:8.2f} {tests:6.0f}  {name}")
    return status


def main() -> int:
    """Measure the targets that are named, or the two that run at each change."""
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        return max(measure(target, Path(folder)) for target in sys.argv[1:] or ("quick", "test"))


if __name__ == "__main__":
    sys.exit(main())
