"""`make tutorial`: runs the commands of docs/tutorial/ and of some how-to pages, and writes what they print into these.

A block of `sh` is run by bash, a block of `text` after it is what it prints, and a block with a title is a file that is
written first. All pages share one folder, which begins with a link to experiments/. What differs from one execution to
the next (times, ids, ports) is a dot in the pages; a block titled `for example` is replaced only if more than its
numbers has changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HOW_TO = (DOCS / "how-to" / "stragglers.md",)
"""How-to pages whose outputs are those of their commands."""
_EXECUTED = f'env PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{ROOT}" {shlex.quote(sys.executable)} -m strata.main'
LIMIT_S = 240.0
"""Longest time of one block, on a busy machine."""
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL)
EXAMPLE = "for example"
_MASKS = (
    (re.compile(r"\br\d{8}-\d{6}-[0-9a-f]{4}\b"), lambda found: re.sub(r"\w", "·", found[0])),
    (re.compile(r"\ba-[0-9a-f]{12}\b"), lambda found: "a-" + 12 * "·"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), lambda found: "····"),
    (re.compile(r"[\d.:]+( m?s)? wall"), lambda found: "· s wall"),
    (re.compile(r"(?<=logs in )\S+(?=/federation/)"), lambda found: "···"),
)
_LINES = "┃│┳╇┼┴┏┡└┓┩┘├┤"


def pages() -> dict[str, str]:
    """Returns the pages of the tutorial in order, then those of `HOW_TO`, by path below docs/."""
    paths = (*sorted((DOCS / "tutorial").glob("*.md")), *HOW_TO)
    return {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in paths}


def run_anew(shown: Mapping[str, str], folder: Path, run_it: str | None = None) -> dict[str, str]:
    """Runs the commands of all pages in a folder, and returns the pages with what the commands print.

    Args:
        run_it: the shell's words for `strata`; by default its module is executed.

    Raises:
        RuntimeError: a command failed; the message has what it wrote to stderr.
    """
    (folder / "experiments").symlink_to(ROOT / "experiments")
    environment = _environment(folder, run_it or _EXECUTED)
    try:
        return {name: _page(text, folder, environment) for name, text in shown.items()}
    finally:
        down = ["strata", "down"]
        subprocess.run(down, cwd=folder, env=environment, capture_output=True, timeout=LIMIT_S, check=False)  # noqa: S603


def _environment(folder: Path, run_it: str) -> dict[str, str]:
    """Returns an environment whose `strata` is that of this tree, beside the folders of `PYTHONPATH`."""
    (binaries := folder / ".bin").mkdir()
    (binaries / "strata").write_text(f'#!/bin/sh\nexec {run_it} "$@"\n', encoding="utf-8")
    (binaries / "strata").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "CLOUD_", "EDGE_"))}
    kept.pop("PYTHONPATH", None)
    return kept | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "100"}


def _page(text: str, folder: Path, environment: Mapping[str, str]) -> str:
    printed: str | None = None  # by the command before

    def block(found: re.Match[str]) -> str:
        nonlocal printed
        language, title, body = found["language"], found["title"], found["body"]
        if language == "sh":
            printed = masked(_output(body, folder, environment))
        elif language == "text" and printed is not None:
            new, printed = printed, None
            if title != EXAMPLE or skeleton(new) != skeleton(body):
                return found[0].removesuffix(f"{body}```") + f"{new}```"
        elif title:
            (path := folder / title).parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        return found[0]

    return BLOCK.sub(block, text)


def _output(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    with (folder / ".stderr").open("w+", encoding="utf-8") as errors:
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        done = subprocess.run(  # noqa: S603 - the tutorial's own commands
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S, check=False
        )
        if done.returncode != 0:
            errors.seek(0)
            printed = done.stdout.decode() + errors.read()[-3000:]
            raise RuntimeError(f"exit status {done.returncode} of\n{script}\n{printed}")
    return done.stdout.decode()


def masked(text: str) -> str:
    """Returns an output with a dot in the place of ids, ports and times, and without blanks at the ends of lines."""
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    lines = [line.rstrip() for line in _without_wall_times(text.splitlines())]
    return "".join(f"{line}\n" for line in lines)


def _without_wall_times(lines: list[str]) -> list[str]:
    """Returns lines with the column `wall` of each table at one width, without its values."""
    shown: list[str] = []
    column: int | None = None
    for line in lines:
        parts = re.split(f"([{_LINES}])", line)
        if line.startswith("┏"):
            column = _column(lines[len(shown) :])
        if column is not None and len(parts) > 2 * column + 2:
            cell = parts[2 * column + 2]
            parts[2 * column + 2] = cell[:1] * 6 if set(cell) <= set("━─") else f"{cell.strip():^6}"
            if re.fullmatch(r"[\d.:]+( m?s)?|-", cell.strip()):
                parts[2 * column + 2] = f"{'·':^6}"
        shown.append("".join(parts))
        column = None if line.startswith("└") else column
    return shown


def _column(table: list[str]) -> int | None:
    """Returns the number of the column `wall` of the table with which these lines begin."""
    for line in table:
        if line.startswith("┡"):
            return None
        cells = [cell.strip() for cell in line.split("┃")[1:-1]]
        if "wall" in cells:
            return cells.index("wall")
    return None


def skeleton(text: str) -> list[str]:
    """Returns the kinds of lines of an output, sorted: each once, without digests, numbers and blanks."""
    bare = re.sub(r"\b[0-9a-f]{64}\b", "", text)
    return sorted({re.sub(r"\s*[\d.·]+\s*|\s+|[━─]+", " ", line).strip() for line in bare.splitlines()})


def main() -> None:
    """Write the pages anew."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in run_anew(pages(), Path(scratch)).items():
            (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
