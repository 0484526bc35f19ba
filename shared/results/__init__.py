"""The results folder of a run, for people: `runs/<id>/`.

    spec.yaml           the spec, resolved once the run has started
    manifest.json       what the figures rest on: seed, digests, versions, CPU
    run.json            the run as the API shows it
    rounds.csv          a line for each round
    devices.ndjson      a line for each visit
    edges.ndjson        a line for each edge and round: what became of it, its bytes and seconds
    links.csv           a line for each link, purpose and round
    seats.ndjson        a line for each seat: its home, profile and samples of each class, as the run began
    model.safetensors   the newest global model
    plots/              accuracy.png, bytes.png, clients.png, partition.png, and what the algorithm shows beside

Tables grow by whole lines; every other file is replaced as a whole, so a reader never sees half of one. No tier
needs what is here: the state of a run lives in its stores. (A cloud that returns looks up the last round written.)
"""

from __future__ import annotations

from shared.plots.groups import Grouping, cut, newest_grouping, newest_tree
from shared.results.compare import Comparison, Course, compare
from shared.results.files import (
    file_names,
    newest_run,
    read_round,
    read_rounds,
    read_run,
    run_folders,
    summary,
    write_file,
)
from shared.results.find import find_folders
from shared.results.manifest import Manifest
from shared.results.write import is_drawn, last_round, write_begun, write_results

__all__ = [
    "Comparison",
    "Course",
    "Grouping",
    "Manifest",
    "compare",
    "cut",
    "file_names",
    "find_folders",
    "is_drawn",
    "last_round",
    "newest_grouping",
    "newest_run",
    "newest_tree",
    "read_round",
    "read_rounds",
    "read_run",
    "run_folders",
    "summary",
    "write_begun",
    "write_file",
    "write_results",
]
