"""`python -m benchmarks [ROW,ROW...]`: the rows named, or all, as one table.

In measured rounds nothing is evaluated, neither in the product (`eval_every` lies beyond the last round, so that
`Work.evaluate` is false and the judge has nothing to do) nor in the loops.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from strata.launcher.environment import common

ROWS = ("cnn", "mlp", "transport", "scale", "memory", "train", "methods", "half", "profile")
MARK = "BENCH_ENVIRONMENT"


def main() -> None:
    """Run the rows, each in a temporary folder."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", default="", help=f"of {', '.join(ROWS)}; none = all")
    parser.add_argument("--tiny", action="store_true", help="as the tests run them; the figures say nothing")
    options = parser.parse_args()
    rows = [row for row in options.rows.split(",") if row] or list(ROWS)
    unknown = sorted(set(rows) - set(ROWS))
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    _as_the_product()
    _print(rows, tiny=options.tiny)


def _as_the_product() -> None:
    """Begin again with the environment of the product's processes: threads and memory are then the same for all."""
    if MARK not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], common({MARK: "1"}, ""))  # noqa: S606


def _print(rows: list[str], *, tiny: bool) -> None:
    import torch

    from benchmarks.sizes import FULL, TINY
    from benchmarks.table import FORM, HEADER, show

    torch.set_num_threads(1)
    print(FORM.format(*HEADER), flush=True)
    for row in rows:
        module = importlib.import_module(f"benchmarks.rows.{row}")
        with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
            show(module.lines(Path(folder), TINY if tiny else FULL))


if __name__ == "__main__":
    main()
