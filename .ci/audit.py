"""Reports known vulnerabilities of the pinned packages with pip-audit: `make audit`.

Exit status: 0 if every pin was looked up and none is known to be vulnerable; 1 if some are, which are listed; 3 if no
advisory service answers for some or all of them (pip-audit itself reports a package that the service does not know as
"skipped" and exits with 0).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
SERVICES = ("pypi", "osv")
VULNERABLE, UNANSWERED = 1, 3
LIMIT_S = 60


def asked(service: str) -> list[dict[str, Any]]:
    """Returns a service's answer for each pin; empty if it does not answer."""
    command = [sys.executable, "-m", "pip_audit", "-r", str(PINS), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", service, "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)  # noqa: S603 - no shell
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []
    return found


def verdict(answers: list[list[dict[str, Any]]]) -> tuple[int, list[str]]:
    """Returns the exit status and the messages for the answers of all services."""
    lines = [line for answer in answers for line in answer]
    known = {line["name"]: line for line in lines if "skip_reason" not in line}
    missing = sorted({line["name"] for line in lines} - known.keys())
    bad = {
        f"{line['name']} {line['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        for line in lines
        for flaw in line.get("vulns", ())
    }
    if bad:
        return VULNERABLE, [f"{len(bad)} known vulnerabilities:", *sorted(bad)]
    if not known:
        return UNANSWERED, ["NOT AUDITED: no advisory service answers"]
    if missing:
        return UNANSWERED, [f"NOT AUDITED: no advisory service knows {', '.join(missing)}"]
    return 0, [f"{len(known)} packages, no known vulnerability"]


def main() -> int:
    """Query each service and print the result."""
    if importlib.util.find_spec("pip_audit") is None:
        sys.exit("pip-audit is not installed: `make audit` does that")
    with ThreadPoolExecutor() as services:  # where none answers, the second time limit does not follow the first
        status, messages = verdict(list(services.map(asked, SERVICES)))
    print("\n".join(messages))
    return status


if __name__ == "__main__":
    sys.exit(main())
