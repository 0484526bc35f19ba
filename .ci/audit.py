"""Reports known vulnerabilities of the pinned packages with pip-audit, and names what it cannot see: `make audit`.

Binaries within packages and images of containers are named; of these only Redis servers are judged, by the releases
that the launcher knows.

Exit status: 0 if every pin was looked up and nothing is known to be vulnerable; 1 if something is, which is listed; 3
if no advisory service answers for some or all pins (pip-audit itself reports a package that the service does not know
as "skipped" and exits with 0).
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from strata.launcher.redis_binary import FIXED, FLAWS, Binary, bundled_servers, find_redis_server

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
CONTAINERS = ("Dockerfile", "docker-compose*.yml", "docker-stack*.yml")
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


def servers(bundled: list[Binary], used: Binary) -> tuple[int, list[str]]:
    """Returns the exit status and a line for each Redis server in a package and for the one that is started here."""
    each = {binary.path: binary for binary in (*bundled, used)}.values()
    lines = [f"{binary}{' is started here and' if binary == used else ''} {_has(binary)}" for binary in each]
    return 0 if used.patched else VULNERABLE, lines


def _has(binary: Binary) -> str:
    return f"{'has the fixes of' if binary.patched else 'is not known to be without'} {FLAWS}"


def libraries() -> list[str]:
    """Returns what packages contain that reads certificates and pictures."""
    from cryptography.hazmat.backends.openssl import backend
    from PIL import features

    codecs = [f"{name} {features.version(name)}" for name in ("libjpeg_turbo", "zlib", "webp") if features.check(name)]
    return [f"cryptography contains {backend.openssl_version_text()}", f"pillow contains {', '.join(codecs)}"]


def images(root: Path) -> list[str]:
    """Returns a line for each image that containers start from, without our own."""
    users: dict[str, list[str]] = {}
    for path in sorted(path for pattern in CONTAINERS for path in root.glob(pattern)):
        for image in re.findall(r"^ *(?:image:|FROM) +([\w./-]+:[\w.-]+)", path.read_text(), re.MULTILINE):
            if not image.startswith("stratafl:") and path.name not in users.setdefault(image, []):
                users[image].append(path.name)
    return [f"image {image} ({', '.join(files)}){_needed(image)}" for image, files in users.items()]


def _needed(image: str) -> str:
    """Returns which release of an image is needed, where only a part of it is named and the newest one is pulled."""
    found = re.fullmatch(r"(redis|valkey/valkey):(\d+)(?:\.(\d+))?(?:-.*)?", image)
    if found is None:
        return ""
    product, prefix = found[1].partition("/")[0].capitalize(), tuple(int(part) for part in found.groups()[1:] if part)
    fixed = [(*series, patch) for series, patch in FIXED[product].items() if series[: len(prefix)] == prefix]
    if not fixed:
        return ""
    return f": needs {product} {'.'.join(map(str, max(fixed)))} or later ({FLAWS}), which a pull brings"


def main() -> int:
    """Query each service and print the result, and what they do not know."""
    if importlib.util.find_spec("pip_audit") is None:
        sys.exit("pip-audit is not installed: `make audit` does that")
    with ThreadPoolExecutor() as services:  # where none answers, the second time limit does not follow the first
        status, messages = verdict(list(services.map(asked, SERVICES)))
    server_status, server_lines = servers(bundled_servers(), find_redis_server())
    print("\n".join([*server_lines, *libraries(), *images(ROOT), *messages]))
    return server_status or status


if __name__ == "__main__":
    sys.exit(main())
