"""`make mutants`: changes the code in one place at a time and sees whether the tests notice.

`python -m tests.mutants run N` goes on with the session in `.mutants/`, or begins it; `report` prints the results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.mutants.packages import all_code
from tests.mutants.report import digest_of, known_survivors, latest_verdicts, report
from tests.mutants.tree import update_copy

FOLDER = Path(".mutants")
LEAST = 19
"""Everything else on the machine goes first."""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("n", type=int, help="how many mutants")
    commands.add_parser("report")
    given = parser.parse_args()
    root = Path.cwd()
    if given.command == "run" and (status := run(root, given.n)):
        return status
    print(report(latest_verdicts(FOLDER, root), known_survivors(root)))
    return 0


def run(root: Path, n: int) -> int:
    """Copy the tree, record what tests cover where that is missing, and judge mutants."""
    if missing := [name for name in ("cosmic_ray", "coverage") if find_spec(name) is None]:
        sys.exit(f"{', '.join(missing)} not installed: `make mutants` does that")
    os.nice(LEAST)
    folder, copy = root / FOLDER, root / FOLDER / "tree"
    copy.mkdir(parents=True, exist_ok=True)
    update_copy(root, copy)
    forget_other_code(copy, folder)
    environment = os.environ | {"PYTHONPATH": str(copy)}
    for command in (["collect", str(folder)], ["session", str(folder), str(n)]):
        module, *arguments = command
        done = subprocess.run([sys.executable, "-m", f"tests.mutants.{module}", *arguments], cwd=copy, env=environment)
        if done.returncode:
            return done.returncode
    return 0


def forget_other_code(copy: Path, folder: Path) -> None:
    """Which test runs which line is known for one state of the code only."""
    now = "\n".join(f"{file} {digest_of(copy / file)}" for file in all_code(copy))
    recorded = folder / "code.txt"
    if recorded.exists() and recorded.read_text("utf-8") != now:
        for name in ("lines.sqlite", "tests.jsonl"):
            (folder / name).unlink(missing_ok=True)
    recorded.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
