"""The state that a local topology keeps for its runs, and how such a run is found and goes on after its end.

A topology without a folder of its own keeps its state in `.strata`, beside the folder of results. When it ends, however
it ends, the state stays as long as a run in it has not completed: `strata resume` starts a topology on it. Who deletes
the results folder of that run gives the state up; the next launcher removes it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shared.core.errors import NotFound
from shared.core.files import write_file
from shared.results.folder import UNRECORDED, with_end
from shared.results.writer_lock import WRITER, state_of
from shared.run_records.runs import RunInfo

_NOTE = "topology.json"
CLOUD = "cloud"
"""The folder of the cloud's state within that of a topology."""


@dataclass(frozen=True)
class Shape:
    """The processes of a topology, and where it writes results, as noted in its folder.

    Attributes:
        devices_per_agent: the number of devices of each agent.
    """

    runs_dir: str
    edges: int
    devices_per_agent: tuple[int, ...]
    secure: bool = False


def note(folder: Path, shape: Shape) -> None:
    """Note the shape of the topology whose state a folder holds."""
    write_file(folder / _NOTE, (json.dumps(asdict(shape)) + "\n").encode())


def shape_of(folder: Path) -> Shape | None:
    """The shape of the topology whose state a folder holds; None if it holds none."""
    try:
        found = json.loads((folder / _NOTE).read_bytes())
        per_agent = tuple(map(int, found["devices_per_agent"]))
        return Shape(str(found["runs_dir"]), int(found["edges"]), per_agent, bool(found["secure"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kept_state(results: Path) -> Path | None:
    """The folder with the state of the local topology in which a run trained last; None if it is gone."""
    state = state_of(results)
    return state.parent if state is not None and shape_of(state.parent) is not None else None


def unfinished(folder: Path, why: str = UNRECORDED) -> list[RunInfo]:
    """The runs that can go on from a topology's state; of those that nobody trains any more, the end is recorded."""
    shape, found = shape_of(folder), list[RunInfo]()
    for writer in Path(shape.runs_dir).glob(f"*/{WRITER}") if shape is not None else ():
        state = state_of(writer.parent)
        if state is not None and state.parent == folder.resolve():
            with suppress(NotFound):
                found.append(with_end(writer.parent, why))
    return [info for info in found if info.status != "completed"]
