"""`python -m benchmarks.es_afl_table RUNS SWEEP...`: table 2 of ES-AFL's paper from sweeps (docs/algorithms/es_afl.md).

RUNS is the folder with the runs' results, each SWEEP a folder of `strata sweep`. Prints a row for each combination
without its seeds, with the mean and the sample deviation over the seeds:

    Acc_G        accuracy of the global model on all samples of held-out clients
    Acc_L        accuracy of a client's own model after its last training, before upload, on its own test samples; mean
    weights, multiply-adds
                 size of the network that a client sends, mean over the clients of the last round, without biases and
                 batch-norm; without sub-networks that of the whole network, which runs of ES-AFL record
    up, down     bytes of an update, and of all that a device receives, in the last round
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from shared.algorithms._evolution import STATISTICS
from shared.plots.subnetworks import Sizes, sizes_of
from shared.results.folder import read_rounds, read_run
from shared.results.spec_differences import described
from shared.results.sweeps import over_seeds, read_sweep
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo

HEAD = ("", "n", "Acc_G", "global test set", "Acc_L", "weights", "multiply-adds", "kB up", "kB down", "simulated s")
DIGITS = (1, 1, 1, 3, 2, 0, 0, 1)
"""Decimal places of each figure."""
Values = tuple[float | None, ...]


def values(info: RunInfo, rounds: Sequence[RoundInfo], sizes: Sequence[Sizes]) -> Values:
    """The figures of one run; accuracies in per cent, bytes in thousands, weights and multiply-adds in millions."""
    last = [row for row in rounds if row.kind == "train" and row.phase != STATISTICS][-1]
    held_out, whole, own = info.final.get("held_out_received"), info.final.get("global"), last.clients.get("own")
    carried = (
        [sum(sizes[-1].clients[name].values()) / 1e6 for name in ("n_weights", "multiply_adds")]
        if sizes
        else [None] * 2
    )
    return (
        _percent(held_out.accuracy if held_out else None),
        _percent(whole.accuracy if whole else None),
        _percent(own.mean if own else None),
        *carried,
        last.device_bytes_up / last.n_used / 1e3,
        last.device_bytes_down / last.n_visits / 1e3,
        info.simulated_s,
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def table(runs_dir: Path, folders: Sequence[Path]) -> str:
    """The rows of all sweeps."""
    lines, supernet = [" | ".join(HEAD), " | ".join("---" for _ in HEAD)], None
    for folder in folders:
        sweep = read_sweep(folder)
        if sweep is None:
            raise SystemExit(f"{folder} is not the folder of a sweep")
        done = [each for each in sweep.combinations if each.status == "completed" and each.run]
        rows = [(each, read_run(runs_dir / str(each.run))) for each in done]
        for group, _ in over_seeds(rows):
            found = []
            for _, info in group:
                if info is None:  # only combinations with a run are in `rows`
                    continue
                rounds = read_rounds(runs_dir / info.run)
                sizes = sizes_of(rounds)
                supernet = sizes[-1].supernet if sizes else supernet
                found.append(values(info, rounds, sizes))
            columns = zip(*found, strict=True)
            lines.append(" | ".join([_name(group[0][1]), str(len(group)), *map(_mean, columns, DIGITS)]))
    if supernet:
        whole = (f"{sum(supernet[name].values()) / 1e6:.4g}" for name in ("n_weights", "multiply_adds"))
        lines.append(" | ".join(["the whole network", *[""] * 4, *whole, *[""] * 3]))
    return "\n".join(f"| {line} |" for line in lines)


def _name(info: RunInfo | None) -> str:
    """The algorithm of a run with its parameters."""
    algorithm = info.spec.algorithm if info else None
    return f"`{algorithm.name}` {described(algorithm.params)}".strip() if algorithm else ""


def _mean(each: Sequence[float | None], digits: int) -> str:
    known = [value for value in each if value is not None]
    if not known:
        return ""
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{deviation}"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    print(table(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]]))
