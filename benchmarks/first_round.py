"""`python -m benchmarks.first_round HOW FOLDER SPEC AGENTS` starts a topology and trains a round.

HOW is `forked` or `executed`. It imports no more than `strata up` does, polls over HTTP until the round is over, prints
a line, and waits for the end of its standard input.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

from strata.launcher.topology import Topology

READY_S = 120.0
LOOK_S = 0.005


def main(how: str, folder: Path, spec: dict[str, Any], agents: int) -> None:
    """Start, train and wait."""
    variables = {"STRATA_DATA_DIR": str(folder / "data"), "STRATA_CACHE_DIR": str(folder / "cache")}
    layout = {"edges": spec["num_edges"], "devices": spec["num_devices"], "agents": agents}
    with Topology(**layout, runs_dir=folder / "runs", env=variables, fork=how == "forked") as topology:
        topology.wait_ready(READY_S)
        with httpx2.Client(base_url=topology.url, trust_env=False, timeout=READY_S) as client:
            run = client.post("/runs", json={"spec": {**spec, "num_rounds": 1}}).raise_for_status().json()["run"]
            ends = time.monotonic() + READY_S
            while (info := client.get(f"/runs/{run}").raise_for_status().json())["rounds"] < 1:
                topology.check()
                if info["status"] == "failed" or time.monotonic() > ends:
                    sys.exit(f"{info['status']}: {info['reason']}")
                time.sleep(LOOK_S)
        print("over", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
