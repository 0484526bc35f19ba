"""Writing a results folder: after every round, and at the end of its run."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

import yaml
from safetensors.torch import save

from shared.core.files import append_file, sync, write_file
from shared.core.formatting import csv_text
from shared.core.records import Record, canonical
from shared.federation.inference import Trained
from shared.results.class_tables import (
    CLASSES,
    CLASSES_HEADER,
    CONFUSION,
    class_rows,
    confusion_header,
    confusion_rows,
)
from shared.results.folder import (
    DEVICES,
    EDGES,
    GROUPS,
    LINKS,
    MODELS,
    PREPROCESSING,
    ROUND_FIELDS,
    ROUNDS,
    SEATS,
    model_path,
    read_last_line,
    write_record,
)
from shared.results.group_scores import group_rows
from shared.results.manifest import Manifest
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.rounds import Evaluation, RoundDetail, RoundInfo
from shared.run_records.runs import FINAL, RunInfo, SeatInfo
from shared.simulation.cost_model import LinkUse
from shared.spec.experiment import ExperimentSpec

log = logging.getLogger(__name__)
_FIRST = ("round_no", "kind")
_OF_SEVERAL, _OF_SAMPLES, _OF_TELEMETRY = (
    ("client_metrics",),
    ("collected_bytes", "collected_j"),
    ("telemetry_bytes", "telemetry_j"),
)
"""Columns only of runs with further metrics, of runs whose devices send samples, and of those that send telemetry."""
_ONLY_OF_SOME = (*_OF_SEVERAL, *_OF_SAMPLES, *_OF_TELEMETRY)
_COLUMNS = (*_FIRST, *(name for name in ROUND_FIELDS if name not in (*_FIRST, *_ONLY_OF_SOME)))
_LINKS_HEADER = ("round_no", "kind", "link", "purpose", "down_bytes", "up_bytes")
MOST_MODELS = 64
"""Of a run with more models the global one is written alone; the cloud has the others."""
_PURPOSES = {"evaluated": "evaluate", "collected": "collect"}

Key = tuple[int, bool]
"""A round in a table: its number, and whether it only evaluated (such rounds follow training). Each line begins with
number and kind in a fixed form."""


def write_results(
    folder: Path,
    info: RunInfo,
    rounds: Sequence[RoundInfo],
    *,
    model: Trained | None,
    manifest: Manifest,
    seats: Sequence[SeatInfo] = (),
) -> None:
    """Writes or updates the results folder of a run.

    `run.json` is written last: once it says that the run has ended, all other files are complete and on the disk. A
    round is in `rounds.csv` once its lines are in the other tables.

    Rounds are merged into the tables by (number, kind), so only new and changed ones are needed. Rounds after the last
    one written are appended without reading the lines before them.

    Args:
        folder: `runs/<id>`; made if absent.
        info: the run as the API shows it now.
        rounds: all rounds, or those since the last call. Lines of a round's visits, links and edges are replaced
            only if it comes with some: a plain `RoundInfo` with its late evaluation leaves visits and links.
        model: the trained models, and what their use needs; None means that their files stay as they are.
        manifest: see `Manifest.of`.
        seats: the seats of the run, whose list is written once.
    """
    _write_spec(folder, info)
    links = {_key(row): _link_lines(row) for row in rounds}
    _merge(folder / LINKS, _line(_LINKS_HEADER), links)
    _merge(folder / EDGES, b"", {_key(row): _row_lines(row, row.edges) for row in rounds})
    visits = {_key(row): _row_lines(row, row.seats) for row in rounds if isinstance(row, RoundDetail)}
    _merge(folder / DEVICES, b"", visits)
    _write_class_tables(folder, rounds, info.classes)
    _write_rounds(folder, info, rounds)
    if model is not None:
        _write_models(folder, model)
    if seats and not has_seats(folder):
        write_file(folder / SEATS, b"".join(seat.model_dump_json().encode() + b"\n" for seat in seats))
    if rows := group_rows(info):
        write_file(folder / GROUPS, csv_text(rows).encode())
    _write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    if info.status in FINAL:
        for path in (*folder.glob("*.*"), *folder.glob(MODELS), *folder.glob(f"{MODELS}/*.*"), folder):
            sync(path)
    write_record(folder, info)


def _write_rounds(folder: Path, info: RunInfo, rounds: Sequence[RoundInfo]) -> None:
    further = [metric for metric in info.metrics if metric.label != ACCURACY.label]
    last = _OF_SEVERAL * (len(info.metrics) > 1) + _OF_SAMPLES * (info.spec.collected == "travels")
    last += _OF_TELEMETRY * (info.spec.telemetry is not None)
    header = _line((*_COLUMNS, "accuracy", "loss", *(metric.label for metric in further), *last))
    _merge(folder / ROUNDS, header, {_key(row): [_round_line(row, further, last)] for row in rounds})


def _write_class_tables(folder: Path, rounds: Sequence[RoundInfo], names: Sequence[str]) -> None:
    """Adds what evaluations count by class; a run whose metrics count none has no such tables."""
    rows = {_key(row): class_rows(row, names) for row in rounds}
    if any(rows.values()):
        _merge(folder / CLASSES, _line(CLASSES_HEADER), {key: list(map(_line, found)) for key, found in rows.items()})
    header = next(filter(None, (confusion_header(row, names) for row in rounds)), None)
    if header is not None:
        lines = {_key(row): list(map(_line, confusion_rows(row, names))) for row in rounds}
        _merge(folder / CONFUSION, _line(header), lines)


def _write_models(folder: Path, trained: Trained) -> None:
    """Writes the global model, further ones (not those of very many clients), and how samples are preprocessed."""
    for name, model in trained.models.items():
        if name in ("global", "best") or len(trained.models) <= MOST_MODELS:
            content = save({key: tensor.detach().contiguous() for key, tensor in model.items()})
            write_file(model_path(folder, name), content)
    if trained.preprocessing is not None:
        write_file(folder / PREPROCESSING, trained.preprocessing.to_json())
    elif trained.why_not:
        log.warning("%s has no %s: %s", folder, PREPROCESSING, trained.why_not)


def write_begun(folder: Path, info: RunInfo) -> None:
    """Makes the results folder of a run without committed rounds: its spec, and the reason why it waits or failed."""
    _write_spec(folder, info)
    write_record(folder, info)


def _write_spec(folder: Path, info: RunInfo) -> None:
    write_file(folder / "spec.yaml", _spec_text(canonical(info.spec)))


@lru_cache(maxsize=8)
def _spec_text(spec: str) -> bytes:
    """Returns a spec (canonical JSON) as YAML; cached, since it is written in every round."""
    fields = ExperimentSpec.model_validate_json(spec).model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True).encode()


def has_seats(folder: Path) -> bool:
    """Whether the list of seats has been written, so that no seats need be given."""
    return (folder / SEATS).exists()


def last_round(folder: Path) -> int:
    """Returns the last round with lines in all tables, perhaps incomplete; 0 for none or a truncated line.

    It is 0 too if a table begins with a later round than the first: somebody removed files while the run trained.
    """
    paths = [folder / name for name in (LINKS, EDGES, DEVICES, ROUNDS)]
    if not all(path.exists() for path in paths) or any(_first_round(path) != 1 for path in paths):
        return 0
    line = read_last_line(paths[-1])
    last = _key_of(line) if line.endswith(b"\n") else None
    return last[0] if last else 0


def _first_round(path: Path) -> int | None:
    """The round of the first line of a table, of which the header is none."""
    with path.open("rb") as file:
        keys = (_key_of(line) for line in islice(file, 2) if line.endswith(b"\n"))
        return next((key[0] for key in keys if key), None)


def _write_json(path: Path, value: object) -> None:
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


# ---- lines


def _key(row: RoundInfo) -> Key:
    return (row.round_no, row.kind == "evaluate")


def _round_line(row: RoundInfo, further: Sequence[MetricInfo], last: Sequence[str]) -> bytes:
    """Returns all fields except the edges; structures are JSON; the global test set has further columns."""
    values = row.model_dump(mode="json", include=set(ROUND_FIELDS))
    cells = {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in values.items()}
    on_global = (row.evaluation or {}).get("global") or Evaluation(n=0)
    of_global = [on_global.accuracy, on_global.loss, *(on_global.value(metric) for metric in further)]
    return _line(
        ["" if cells[name] is None else cells[name] for name in _COLUMNS]
        + ["" if value is None else value for value in of_global]
        + [cells.get(name, 0) for name in last]
    )


def _row_lines(row: RoundInfo, rows: Sequence[Record]) -> list[bytes]:
    """Returns visits or edges of a round as JSON."""
    head = {"round_no": row.round_no, "kind": row.kind}
    return [json.dumps({**head, **item.model_dump(mode="json")}, separators=(",", ":")).encode() for item in rows]


def _link_lines(row: RoundInfo) -> list[bytes]:
    """Returns bytes by link and purpose, summed over a seat's visits in a round; none for a round without visits."""
    if not isinstance(row, RoundDetail):
        return []
    used: dict[tuple[str, str], LinkUse] = defaultdict(LinkUse)
    for edge in row.edges:
        for purpose, n_bytes in (("samples", edge.collected_bytes), ("telemetry", edge.telemetry_bytes)):
            if n_bytes:
                used[f"devices/{edge.edge}", purpose] = LinkUse(up_bytes=n_bytes)
        used[f"{edge.edge}/cloud", row.kind] += LinkUse(down_bytes=edge.down_bytes, up_bytes=edge.up_bytes)
    for seat in row.seats:
        purpose = _PURPOSES.get(seat.outcome, row.kind)
        used[f"seat-{seat.seat}/{seat.edge}", purpose] += LinkUse(down_bytes=seat.down_bytes, up_bytes=seat.up_bytes)
    return [
        _line((row.round_no, row.kind, link, purpose, use.down_bytes, use.up_bytes))
        for (link, purpose), use in used.items()
    ]


def _line(cells: Sequence[object]) -> bytes:
    """Returns one line of CSV without its end; line breaks in cells become blanks, so that each line is a row."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([" ".join(str(cell).splitlines()) for cell in cells])
    return buffer.getvalue().encode()


# ---- merging


def _merge(path: Path, header: bytes, new: dict[Key, list[bytes]]) -> None:
    """Writes lines of rounds into a table: appended, or in place of lines of the same rounds."""
    new_lines = {key: lines for key, lines in sorted(new.items()) if lines}
    head = header + b"\n" * bool(header)
    if not path.exists():
        write_file(path, head + _joined(new_lines))
        return
    last_line = read_last_line(path)
    last = _key_of(last_line) if last_line.endswith(b"\n") else None
    if new_lines and last is not None and min(new_lines) > last:
        append_file(path, _joined(new_lines))
    elif new_lines:
        write_file(path, head + _regrouped(path.read_bytes(), new_lines))


def _joined(groups: Mapping[Key, list[bytes]]) -> bytes:
    return b"".join(line + b"\n" for lines in groups.values() for line in lines)


def _regrouped(old: bytes, new_lines: Mapping[Key, list[bytes]]) -> bytes:
    """Returns old and new lines by round; an incomplete last line (after a crash) is dropped."""
    groups: dict[Key, list[bytes]] = defaultdict(list)
    for line in old[: old.rfind(b"\n") + 1].splitlines():
        key = _key_of(line)
        if key is not None and key not in new_lines:
            groups[key].append(line)
    groups.update(new_lines)
    return _joined(dict(sorted(groups.items())))


def _key_of(line: bytes) -> Key | None:
    """Returns round and kind from the start of a CSV or JSON line; None for a header or an empty file."""
    if line.startswith(b"{"):
        number, kind = line.split(b",", 2)[:2]
        return int(number.rpartition(b":")[2]), kind.endswith(b'"evaluate"')
    number, _, rest = line.partition(b",")
    return (int(number), rest.startswith(b"evaluate,")) if number.isdigit() else None
