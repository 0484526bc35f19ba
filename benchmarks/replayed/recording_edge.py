"""`python -m benchmarks.replayed.recording_edge`: an edge that also writes the bodies of its answers into `FOLDER`."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from shared.core.records import Record
from shared.federation.messages import RoundAnswer
from shared.wire import codec

FOLDER = "BENCH_ANSWERS"


def main() -> None:
    """Run the edge."""
    encode = codec.encode

    def recorded(record: Record) -> codec.Body:
        body = encode(record)
        if isinstance(record, RoundAnswer):
            name = f"{record.edge}-{os.getpid()}"
            Path(os.environ[FOLDER], f"{name}.tmp").write_bytes(b"".join(body.parts))
            Path(os.environ[FOLDER], f"{name}.tmp").rename(Path(os.environ[FOLDER], name))
        return body

    codec.encode = recorded
    runpy.run_module("edge_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
