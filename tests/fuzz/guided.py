"""The codec under a coverage-guided fuzzer: `python -m tests.fuzz.guided CORPUS [-libfuzzer_option=...]`.

The first byte of an input selects the recorded sample as which the rest is decoded. Half of the mutations are
libFuzzer's, half those of `bodies`, which keep header and lengths consistent.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=[
        "shared.wire.codec",
        "shared.wire.json_encoding",
        "shared.wire.json_decoding",
        "shared.wire.sparse",
        "shared.core.parsing",
        "shared.core.records",
        "shared.federation.aggregation",
    ]
):
    from shared.wire import codec  # noqa: F401 - first imported here, so that it is instrumented

from tests.fuzz.bodies import PROBES, Sample, mutated, outcome, record

SAMPLES: list[Sample] = []


def try_one(data: bytes) -> None:
    """Tries an input."""
    if data:
        outcome(SAMPLES[data[0] % len(SAMPLES)], data[1:])


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Returns a changed input."""
    if seed % 2 or not data:
        return bytes(atheris.Mutate(data, max_size))
    return (data[:1] + mutated(data[1:], random.Random(seed)))[:max_size]


def main() -> None:
    """Records bodies as the first corpus, then fuzzes."""
    corpus, *options = sys.argv[1:]
    os.environ["STRATA_PLUGINS"] = PROBES
    with tempfile.TemporaryDirectory() as folder:
        SAMPLES.extend(asyncio.run(record(Path(folder))))
    for index, sample in enumerate(SAMPLES):
        (Path(corpus) / f"{index:02d}").write_bytes(bytes([index]) + sample.body)
    limits = ["-max_len=65536", "-timeout=60", "-rss_limit_mb=3000", f"-artifact_prefix={corpus}/"]
    atheris.Setup([sys.argv[0], *limits, *options, corpus], try_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
