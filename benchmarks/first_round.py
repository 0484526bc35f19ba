"""`python -m benchmarks.first_round HOW FOLDER SPEC` starts a topology, HOW `forked` or `executed`, and trains a round.

It prints a line when the round is over, and ends when its standard input does. It imports no more than `strata up` does
until then, and asks for the end of the round over HTTP.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import httpx

from strata.launcher.topology import Topology

READY_S = 120.0
LOOK_S = 0.005


def main(how: str, folder: Path, spec: dict[str, object]) -> None:
    """Start, train and wait."""
    variables = {"STRATA_DATA_DIR": str(folder / "data"), "STRATA_CACHE_DIR": str(folder / "cache")}
    edges, devices = int(str(spec["num_edges"])), int(str(spec["num_devices"]))
    with Topology(
        edges=edges, devices=devices, agents=2, runs_dir=folder / "runs", env=variables, fork=how == "forked"
    ) as topology:
        topology.wait_ready(READY_S)
        with httpx.Client(base_url=topology.url, trust_env=False, timeout=READY_S) as client:
            run = client.post("/runs", json={"spec": {**spec, "num_rounds": 1}}).raise_for_status().json()["run"]
            while (info := client.get(f"/runs/{run}").json())["rounds"] < 1:
                topology.check()
                if info["status"] == "failed":
                    sys.exit(info["reason"])
                time.sleep(LOOK_S)
        print("over", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
