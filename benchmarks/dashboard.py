"""`python -m benchmarks.dashboard`: the load of the dashboard in a real browser, with 100 devices and 50 rounds.

Starts a topology, opens the topology page and the run's page, runs 50 short rounds and prints, for each page, the
number of browser tasks over 200 ms, and the memory of its scripts after 5 and after 50 rounds (after a garbage
collection). Needs Chromium on the path.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from strata.api.client import Client
from strata.launcher.topology import Topology

SPEC = {
    "name": "dashboard",
    "data": {"name": "digits", "n_train": 1000},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "devices": {"profile": "phone_low", "straggler_ratio": 0.2},
    "lr": 0.1,
}
LONG_MS = 200
_WATCH = (
    "window.longTasks = []; new PerformanceObserver(list => list.getEntries().forEach(e => longTasks.push(e.duration)))"
    ".observe({type: 'longtask', buffered: true});"
)


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        made = Topology(runs_dir=Path(folder) / "runs", edges=4, devices=chosen.devices, agents=2).start()
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            made.wait_ready(120)
            rows = _measured(chromium, made.url, chosen.devices, chosen.rounds)
        finally:
            chromium.close()
            made.stop()
    print(f"| page | tasks over {LONG_MS} ms | the longest | heap after 5 rounds | after {chosen.rounds} |")
    print("|---|---|---|---|---|")
    for name, long, longest, early, late in rows:
        print(f"| {name} | {long} | {longest:.0f} ms | {early:.1f} MB | {late:.1f} MB |")


def _measured(chromium: Any, url: str, devices: int, rounds: int) -> list[tuple[str, int, float, float, float]]:
    client = Client(url, timeout_s=60)
    run = client.create_run({**SPEC, "num_devices": devices, "num_rounds": rounds})
    pages = {"topology": _opened(chromium, f"{url}/ui/"), "run": _opened(chromium, f"{url}/ui/runs/{run.run}")}
    heaps: dict[str, list[float]] = {name: [] for name in pages}
    for until in (5, rounds):
        while client.run(run.run).rounds < until:
            for page in pages.values():
                page.wait_for_timeout(500)
        for name, page in pages.items():
            page.wait_for_timeout(3000)
            heaps[name].append(_heap_mb(page))
    found = []
    for name, page in pages.items():
        tasks = [task for task in page.evaluate("longTasks") if task > LONG_MS]
        early, late = heaps[name]
        found.append((name, len(tasks), max(page.evaluate("longTasks"), default=0.0), early, late))
    return found


def _opened(chromium: Any, address: str) -> Any:
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.add_init_script(_WATCH)
    page.goto(address)
    page.get_by_role("heading", level=1).wait_for()
    return page


def _heap_mb(page: Any) -> float:
    """Memory of the page's scripts once what is not needed is gone."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    time.sleep(0.5)
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    return used / 1e6


if __name__ == "__main__":
    main()
