"""`python -m tests.soak --minutes 15 --seed 1`: a soak whose end status says whether all was well."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.soak import soak


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="until no further run is begun")
    parser.add_argument("--seed", type=int, default=1, help="decides kinds, victims and moments of the faults")
    parser.add_argument("--json", type=Path, default=Path("runs/soak.json"), help="where the summary goes")
    parser.add_argument("--logs", type=Path, help="a folder that gets the logs of all processes, for looking into")
    options = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that what was mounted is unmounted
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="strata-soak-") as folder:
        summary = soak(options.minutes, options.seed, Path(folder), say=say)
        if options.logs:
            for kind in ("rough", "quiet"):
                for log in Path(folder, kind, "logs").glob("*.log"):
                    target = options.logs / kind / log.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(log.read_bytes())
    summary.write(options.json)
    print(summary.table())
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())
