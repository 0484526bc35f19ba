"""`python -m benchmarks [ROW,ROW...]`: prints the named rows, or all, as one table.

Measured rounds evaluate nothing, neither in the product (`eval_every` is larger than the number of rounds, so that
`Task.evaluate` is false and the cloud's evaluator is idle) nor in the loops.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from strata.launcher.environment import common

ROWS = (
    *("start", "cnn", "mlp", "transport", "scale", "population", "devices", "runs", "in_flight", "memory"),
    *("events", "tls", "connect", "profile", "train", "methods", "half", "pristine", "stacked"),
)
"""Those that train in this process come last: torch's counter of operations sets variables that libraries read, and
with other variables than the fork server's, processes are executed."""
MARK = "BENCH_ENVIRONMENT"


def main() -> None:
    """Run the rows, each in a temporary folder."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", default="", help=f"any of {', '.join(ROWS)}; default: all")
    parser.add_argument("--tiny", action="store_true", help="the tiny sizes of the tests; the figures mean nothing")
    options = parser.parse_args()
    rows = [row for row in options.rows.split(",") if row] or list(ROWS)
    unknown = sorted(set(rows) - set(ROWS))
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    _use_product_environment()
    _print(rows, tiny=options.tiny)


def _use_product_environment() -> None:
    """Restart with the environment of the product's processes, so that threads and memory are the same for all."""
    if MARK not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], common({MARK: "1"}, ""))  # noqa: S606


def _print(rows: list[str], *, tiny: bool) -> None:
    import torch

    from benchmarks.forking import one_fork_server
    from benchmarks.sizes import FULL, TINY
    from benchmarks.table import FORM, HEADER, show

    torch.set_num_threads(1)
    print(FORM.format(*HEADER), flush=True)
    with ExitStack() as stack:
        if tiny:
            stack.enter_context(one_fork_server(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        for row in rows:
            module = importlib.import_module(f"benchmarks.rows.{row}")
            with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
                show(module.lines(Path(folder), TINY if tiny else FULL))


if __name__ == "__main__":
    main()
