"""The score by package, and the survivors: with the reason that `survivors.toml` gives, or apart if it gives none."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.recorded import read_lines
from tests.mutants.trial import KILLED, TIMEOUT

VERDICTS, SAMPLE = "verdicts.jsonl", "sample.json"
"""Files of a session: its verdicts, and the names of its mutants."""
REASONS = Path("tests/mutants/survivors.toml")


class Known(NamedTuple):
    """A change that no test can notice, or that none needs to, and why."""

    file: str
    function: str
    was: str
    becomes: str
    reason: str

    def matches(self, verdict: dict[str, Any]) -> bool:
        """Whether it is about this survivor."""
        return all(getattr(self, name) == verdict[name] for name in ("file", "function", "was", "becomes"))


def known_survivors(root: Path) -> list[Known]:
    """The entries of `survivors.toml`."""
    path = root / REASONS
    entries = tomllib.loads(path.read_text("utf-8")).get("survivor", []) if path.exists() else []
    return [Known(**entry) for entry in entries]


def latest_verdicts(folder: Path, root: Path) -> list[dict[str, Any]]:
    """The last verdict of each mutant of the last session, if its file is still the same."""
    keys = set(json.loads((folder / SAMPLE).read_text("utf-8"))) if (folder / SAMPLE).exists() else set()
    latest = {verdict["key"]: verdict for verdict in read_lines(folder / VERDICTS) if verdict["key"] in keys}
    digests = {file: digest_of(root / file) for file in {verdict["file"] for verdict in latest.values()}}
    return [verdict for verdict in latest.values() if digests[verdict["file"]] == verdict["code"]]


def digest_of(path: Path) -> str:
    """Changes with the file's content; empty if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def report(verdicts: list[dict[str, Any]], known: list[Known]) -> str:
    """The whole report."""
    survivors = [verdict for verdict in verdicts if verdict["verdict"] not in (KILLED, TIMEOUT)]
    reasons = {v["key"]: next((entry.reason for entry in known if entry.matches(v)), None) for v in survivors}
    lines = list(_table(verdicts, reasons))
    explained = [verdict for verdict in survivors if reasons[verdict["key"]]]
    open_ones = [verdict for verdict in survivors if not reasons[verdict["key"]]]
    if explained:
        lines += ["", f"{len(explained)} survivors with a reason"]
    for verdict in explained:
        lines += [*_diff(verdict), f"    {reasons[verdict['key']]}"]
    lines += ["", f"{len(open_ones)} survivors without a reason in {REASONS}"]
    for verdict in open_ones:
        lines += _diff(verdict)
    judged_files = {verdict["file"] for verdict in verdicts}
    unmatched = [e for e in known if e.file in judged_files and not any(e.matches(v) for v in survivors)]
    if unmatched:
        lines += ["", f"{len(unmatched)} entries of {REASONS} that match no survivor"]
        lines += [f"  {entry.file} {entry.function}: {entry.was}" for entry in unmatched]
    return "\n".join(lines)


def _table(verdicts: list[dict[str, Any]], reasons: dict[str, str | None]) -> Iterator[str]:
    """A line per package, and their sum."""
    names = list(dict.fromkeys(verdict["package"] for verdict in verdicts))
    yield f"{'package':20}{'mutants':>8}{'killed':>8}{'by time':>8}{'survived':>9}{'with reason':>12}{'killed':>8}"
    for name in (*names, "all"):
        here = [verdict for verdict in verdicts if name in ("all", verdict["package"])]
        n_timeouts = sum(verdict["verdict"] == TIMEOUT for verdict in here)
        n_killed = sum(verdict["verdict"] in (KILLED, TIMEOUT) for verdict in here)
        n_explained = sum(bool(reasons.get(verdict["key"])) for verdict in here)
        score = n_killed / len(here) if here else 0.0
        left = len(here) - n_killed
        yield f"{name:20}{len(here):>8}{n_killed:>8}{n_timeouts:>8}{left:>9}{n_explained:>12}{score:>8.1%}"


def _diff(verdict: dict[str, Any]) -> Iterator[str]:
    yield f"  {verdict['file']}:{verdict['line']} {verdict['function']} ({verdict['operator']}, {verdict['verdict']})"
    yield from (f"    - {line}" for line in verdict["was"].split("\n"))
    yield from (f"    + {line}" for line in verdict["becomes"].split("\n"))
