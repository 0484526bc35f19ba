"""`python -m tests.soak --minutes 15 --seed 1`: runs a soak; the exit status says whether it passed."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.soak import run_soak


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="after this many minutes no further run is started")
    parser.add_argument("--seed", type=int, default=1, help="determines the kinds, targets and times of the faults")
    parser.add_argument("--json", type=Path, default=Path("runs/soak.json"), help="where to write the summary")
    parser.add_argument("--logs", type=Path, help="a folder for copies of the logs of all processes")
    options = parser.parse_args()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the small disks are unmounted
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="strata-soak-") as folder:
        summary = run_soak(options.minutes, options.seed, Path(folder), say=say)
        if options.logs:
            for kind in ("disturbed", "reference"):
                for log in Path(folder, kind, "logs").glob("*.log"):
                    target = options.logs / kind / log.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(log.read_bytes())
    summary.write(options.json)
    print(summary.table())
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())
