"""Bodies designed to take memory or time; each is decoded in a separate process with limited memory.

`python -m tests.fuzz.hostile` prints the result of each, and by how many bytes the process grew.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch

from shared.core import parsing
from shared.federation.messages import wire_types
from shared.federation.registry import load_algorithm
from shared.wire import codec

MORE_BYTES = 2**30
"""Address space that a case may take beyond that of the process and the body."""
SECONDS = 90
FEDAVG = load_algorithm("fedavg")
MODEL = {"w": torch.zeros(()).expand(2048, 2048)}
KIND = wire_types(
    broadcast=FEDAVG.broadcast, message=FEDAVG.message_type, update=FEDAVG.update, report=None
).visit_answer


def body(header: str, data: bytes = b"", claimed: int | None = None) -> bytes:
    """A body with any header."""
    coded = header.encode()
    coded += b" " * (-len(coded) % 8)
    return struct.pack("<Q", len(coded) if claimed is None else claimed) + coded + data


def body_with(record: str, tensors: str = "", data: bytes = b"") -> bytes:
    """A body with any record."""
    return body(f'{{"__metadata__":{{"record":{json.dumps(record)}}}{tensors}}}', data)


def tensors(count: int, shape: str = "[1]", step: int = 4, size: int = 4) -> str:
    """Entries of float tensors."""
    places = ((index, index * step, index * step + size) for index in range(count))
    return "".join(f',"{i}":{{"dtype":"F32","shape":{shape},"data_offsets":[{a},{b}]}}' for i, a, b in places)


def answer(outcomes: str) -> str:
    """An answer to visits, as JSON."""
    return f'{{"outcomes":[{outcomes}],"uploads":{{}}}}'


def mostly_empty_body(token: str, times: int) -> bytes:
    """Returns a body in which a few bytes stand for 16 MiB several times: tensors of which no position is kept."""
    record = ",".join(f'"{index}":{token}' for index in range(times))
    data = '{"outcomes":[{"seat":0,"kind":"train","figures":{' + record + '}}],"uploads":{}}'
    empty = ',"0":{"dtype":"I32","shape":[0],"data_offsets":[0,0]},"1":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return body_with(data, f'{empty},"2":{{"dtype":"U8","shape":[513],"data_offsets":[0,513]}}', bytes(513))


CASES: dict[str, Callable[[], bytes]] = {
    "a header of 2^60 bytes": lambda: body("{}", claimed=2**60),
    "a header of 2^64 - 1 bytes": lambda: body("{}", claimed=2**64 - 1),
    "a header longer than the body": lambda: body("{}", claimed=60 * 2**20),
    "a million tensors": lambda: body_with("{}", tensors(10**6), bytes(4 * 10**6)),
    "262,144 tensors": lambda: body_with("{}", tensors(2**18), bytes(2**20)),
    "100,000 tensors over each other": lambda: body_with("{}", tensors(100_000, step=0), bytes(4)),
    "a tensor of 2^52 numbers": lambda: body_with("{}", tensors(1, f"[{2**52}]", size=2**54)),
    "shapes whose product overflows": lambda: body_with("{}", tensors(1, "[4294967296,4294967296,0]", size=0)),
    "deep JSON": lambda: body_with(answer("[" * 10**6 + "]" * 10**6)),
    "deep header": lambda: body('{"a":' * 10**6 + "1" + "}" * 10**6),
    "two million wrong outcomes": lambda: body_with(answer(",".join(["1"] * (2 * 10**6)))),
    "a million outcomes without fields": lambda: body_with(answer(",".join(['{"a":1}'] * 10**6))),
    "a million unknown keys": lambda: body_with(
        '{"outcomes":[],"uploads":{},' + ",".join(f'"{i}":1' for i in range(10**6)) + "}"
    ),
    "twenty million empty lists": lambda: body_with(answer(",".join(["[]"] * (2 * 10**7)))),
    "a number of a million digits": lambda: body_with(answer("1" * 10**6)),
    "a fraction of a million digits": lambda: body_with(answer("1." + "1" * 10**6)),
    "a key of a million characters": lambda: body_with(f'{{"{"k" * 10**6}":1}}'),
    "a text of thirty million characters": lambda: body_with(answer(f'"{"t" * (3 * 10**7)}"')),
    "a hundred masks": lambda: mostly_empty_body('{"$m":[2,[2048,2048]]}', 100),
    "a hundred tensors of which nothing is kept": lambda: mostly_empty_body('{"$k":[1,2,[2048,2048]]}', 100),
    "a hundred coded tensors": lambda: mostly_empty_body('{"$c":["topk",[0,1],[2048,2048]]}', 100),
    "a mask of many empty rows": lambda: mostly_empty_body(f'{{"$m":[2,[0,{2**52}]]}}', 1),
    "a million times the same key": lambda: body_with("{" + ",".join(['"outcomes":[]'] * 10**6) + "}"),
}


def tried(make: Callable[[], bytes]) -> dict[str, Any]:
    """Returns the result of a case in a child process; `killed` if the child ended without one."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, json.dumps(_decoded(make)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    os.waitpid(child, 0)
    return dict(json.loads(output)) if output else {"ended": "killed"}


def _decoded(make: Callable[[], bytes]) -> dict[str, Any]:
    data = make()
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        codec.decode(KIND, data, model=MODEL)
        ended = "read"
    except BaseException as error:  # report any error
        ended = type(error).__name__
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "ended": ended,
        "body_bytes": len(data),
        "grew_bytes": (after.ru_maxrss - before.ru_maxrss) * 1024,
        "cpu_s": round(after.ru_utime - before.ru_utime, 2),
    }


def main() -> None:
    """Tries all cases; with `--without-limits` only the case bounded by a limit of the codec, without that limit.

    No garbage is collected: a case then takes no less memory, and half the time.
    """
    gc.disable()
    if "--without-limits" in sys.argv:
        parsing.MAX_ITEMS = 2**40
        cases = {name: CASES[name] for name in ("twenty million empty lists",)}
    else:
        cases = CASES
    print(json.dumps({name: tried(make) for name, make in cases.items()}, indent=1))


if __name__ == "__main__":
    main()
