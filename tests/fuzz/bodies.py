"""Bodies for fuzzing the codec: real ones that three tiers exchanged, and mutations of them.

All randomness comes from a `random.Random` argument, so that both hypothesis and atheris can drive it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from shared.core.errors import NotFinite, StrataError, WireError
from shared.core.tensor_records import TensorMap
from shared.federation.experiment import ExperimentCache
from shared.federation.messages import UploadOrder
from shared.federation.spec_parser import parse_spec
from shared.wire import codec
from tests.federation import Federation, PassOn, small_spec

PROBES = "tests.probes"
N_SEATS = 2
RECORDED = ("fedavg", "probe_refuse", "probe_collect", "probe_position")
CODED = {"fedavg": {"edge_compression": {"up": "int8", "down": "ternary"}}}


@dataclass(frozen=True)
class Sample:
    """A body, the type to decode it as, and the run's model if its reader knows it by then."""

    name: str
    kind: Any
    body: bytes
    model: TensorMap | None


# ---- real bodies


async def record(folder: Path) -> list[Sample]:
    """Records one body of each kind that tiers exchange in a round; `STRATA_PLUGINS` must name `PROBES`."""
    found: dict[str, Sample] = {}
    for algorithm in RECORDED:
        experiments = ExperimentCache(None, folder / "cache")
        data = {"name": "digits", "n_train": 60, "n_test": 20}
        fields = {"data": data, "num_edges": 1, "num_devices": N_SEATS, "num_rounds": 1, **CODED.get(algorithm, {})}
        spec = small_spec(algorithm=algorithm, **fields)
        async with Federation(folder / algorithm, n_edges=1, agent_devices=(2,)) as fed:
            fed.router.tamper = _record_bodies(algorithm, experiments, found)
            assert (await fed.run(spec)).status == "completed"
    return list(found.values())


def _record_bodies(algorithm: str, experiments: ExperimentCache, found: dict[str, Sample]) -> Any:
    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        response = await pass_on()
        path = request.url.path
        if path in ("/visits", "/uploads", "/rounds") and response.status_code == 200:
            experiment = experiments.of(parse_spec(codec.read_header(request.content).record["spec"]))
            types = experiment.wire_types
            asked, answered = {
                "/visits": (types.visit_order, types.visit_answer),
                "/uploads": (UploadOrder, types.upload_answer),
                "/rounds": (types.round_order, types.round_answer),
            }[path]
            answer = await response.aread()
            for name, kind, body in ((f"{path} order", asked, request.content), (f"{path} answer", answered, answer)):
                model = None if kind is UploadOrder else experiment.shapes
                found.setdefault(f"{algorithm} {name}", Sample(f"{algorithm} {name}", kind, body, model))
            response = httpx2.Response(200, headers=response.headers, content=answer)
        return response

    return tamper


# ---- mutations


def mutated(body: bytes, random: Random) -> bytes:
    """Returns a body with one to four changes to its bytes, its header or its record."""
    for _ in range(random.randint(1, 4)):
        body = random.choice((_other_bytes, _other_header, _other_record, _other_record))(body, random)
    return body


def _other_bytes(body: bytes, random: Random) -> bytes:
    changed = bytearray(body)
    begin = random.randrange(len(changed) + 1)
    end = min(begin + random.choice((0, 1, 1, 8, 64)), len(changed))
    changed[begin:end] = random.choice((b"", random.randbytes(end - begin), bytes(changed[begin:end]) * 2, b"\xff" * 8))
    return bytes(changed[: random.choice((None, None, None, begin))])


def _other_header(body: bytes, random: Random) -> bytes:
    parts = _taken_apart(body)
    if parts is None:
        return _other_bytes(body, random)
    header, record, data = parts
    return _joined(other_value(header, random), record, data, random)


def _other_record(body: bytes, random: Random) -> bytes:
    parts = _taken_apart(body)
    if parts is None:
        return _other_bytes(body, random)
    header, record, data = parts
    return _joined(header, other_value(record, random), data, random)


def _taken_apart(body: bytes) -> tuple[Any, Any, bytes] | None:
    """Returns header, record and tensors of a body that can still be parsed."""
    try:
        (length,) = struct.unpack("<Q", body[:8])
        header = json.loads(body[8 : 8 + length])
        return header, json.loads(header["__metadata__"]["record"]), body[8 + length :]
    except (struct.error, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return None


def _joined(header: Any, record: Any, data: bytes, random: Random) -> bytes:
    text = _twice(json.dumps(record), random)
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        header = {**header, "__metadata__": {**header["__metadata__"], "record": text}}
    coded = _twice(json.dumps(header), random).encode()
    coded += b" " * (-len(coded) % 8)
    length = random.choice((len(coded),) * 12 + (0, len(coded) - 1, len(coded) + 8, 2**60, 2**64 - 1))
    return struct.pack("<Q", length) + coded + data


def _twice(text: str, random: Random) -> str:
    """Returns JSON, sometimes with a duplicate key."""
    return text.replace("{", '{"seat": 0, "seat": [], ', 1) if not random.randrange(20) else text


# ---- JSON values


def other_value(value: Any, random: Random) -> Any:
    """Returns a value with one part replaced, removed, wrapped, doubled or exchanged."""
    value = json.loads(json.dumps(value))
    places = list(_places(value))
    if not places:
        return hostile(random)
    at, key = random.choice(places)
    change = random.randrange(6)
    if change == 0:
        del at[key]
    elif change == 1 and isinstance(at, dict):
        at[random.choice((f"{key}_", "\ud800", "$t", "", "0", "x" * 300))] = at.pop(key)
    elif change == 2:
        at[key] = random.choice(([at[key]], {"0": at[key]}, [at[key]] * 50))
    elif change == 3:
        other, its = random.choice(places)
        at[key] = json.loads(json.dumps(_get(other, its)))
    else:
        at[key] = hostile(random)
    return value


def _get(at: Any, key: Any) -> Any:
    try:
        return at[key]
    except (KeyError, IndexError):
        return None


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def hostile(random: Random) -> Any:
    """Returns an unusual value."""
    return random.choice((random.choice(_MADE)(), random.choice(_PLAIN)))


def _nested(depth: int) -> Any:
    value: Any = {"$t": 0}
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


_PLAIN: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 255, 256, 2**31, 2**32, 2**53, 2**63, -(2**63) - 1, 10**400, -(10**4000),
    0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), "", "0", "\x00", "\ud800", "é\U0001f600", "NaN", "1e999",
    "9" * 5000, "F64", "F4", "BOOL", "U8", "latest", "fedprox", "../../x", "x" * 10_000,
)  # fmt: skip
_MADE: tuple[Callable[[], Any], ...] = (
    list, dict, lambda: [1, 2], lambda: [0], lambda: [2**32, 2**32], lambda: [0, 2**52, 2**52], lambda: [1] * 17,
    lambda: [-1], lambda: [0, 2**53 - 1], lambda: [8, 0], lambda: {"$t": 0}, lambda: {"$t": 1}, lambda: {"$t": -1},
    lambda: {"$t": 2**70}, lambda: {"$t": True}, lambda: {"$t": 0, "x": 1}, lambda: _nested(10), lambda: _nested(70),
    lambda: _nested(300), lambda: [None] * 1000, lambda: {str(index): index for index in range(1000)},
)  # fmt: skip


# ---- checks


def outcome(sample: Sample, body: bytes) -> str:
    """Returns `read`, or the type of the refusal; any other error of the reader is raised."""
    kind = sample.kind
    try:
        codec.read_header(bytearray(body))
        record = codec.decode(kind, bytearray(body), model=sample.model, n_seats=N_SEATS)
    except (WireError, NotFinite) as error:
        refused = error
    else:
        assert isinstance(record, kind)
        again = codec.encode(record).join()
        back = codec.decode(kind, again, model=sample.model, n_seats=N_SEATS)
        assert codec.encode(back).join() == again
        return "read"
    check_message(refused)
    return type(refused).__name__


def check_message(error: StrataError) -> None:
    """Asserts that a message about bad input is short and can be encoded."""
    assert len(error.detail.encode()) < 5000
    assert len((error.field or "").encode()) <= 800
