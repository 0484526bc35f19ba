"""The table of ES-AFL's page: which figures it takes from the records."""

from __future__ import annotations

from pathlib import Path

from benchmarks.es_afl_table import table
from shared.core.scores import Spread
from shared.results.manifest import Manifest
from shared.results.sweeps import Combination, Sweep, SweepFolder
from shared.results.writer import write_results
from shared.run_records.rounds import Evaluation
from shared.spec.fields import AlgorithmSpec
from tests.strata.samples import SPEC, a_round, a_run

WHOLE = {"n_weights": {"a": 3_000_000, "head": 1_000_000}, "multiply_adds": {"a": 40_000_000, "head": 1_000_000}}


def test_rows_show_means_over_seeds_in_the_last_round(tmp_path: Path) -> None:
    combinations = []
    for algorithm, seed, accuracy in (("es_afl", 1, 0.5), ("es_afl", 2, 0.7), ("fedavg", 1, 0.25)):
        run = f"r{algorithm}{seed}"
        sizes = {"n_weights": {"a": 300_000.0 * seed, "head": 0.0}, "multiply_adds": {"a": 4e6, "head": 0.0}}
        figures = {"cloud": {**sizes, "supernet": WHOLE}} if algorithm == "es_afl" else {}
        own = {"own": Spread.of([accuracy, accuracy + 0.2])}
        scores = {name: Evaluation(n=10, accuracy=accuracy, loss=1.0) for name in ("global", "held_out_received")}
        rounds = [a_round(1), a_round(2, clients=own, figures=figures, device_bytes_up=4_000, device_bytes_down=9_000)]
        spec = SPEC.replace(algorithm=AlgorithmSpec(name=algorithm))
        info = a_run(run=run, algorithm=algorithm, final=scores, spec=spec)
        write_results(tmp_path / "runs" / run, info, rounds, model=None, manifest=Manifest.of(info))
        of = {"values": {"seed": seed, "algorithm": algorithm}, "spec_digest": run, "run": run, "status": "completed"}
        combinations.append(Combination.model_validate(of))
    sweep = Sweep(sweep="s", name="t", arguments=(), keys=("seed", "algorithm"), combinations=tuple(combinations))
    SweepFolder(tmp_path / "sweep", sweep, tmp_path / "runs").note(0)
    lines = table(tmp_path / "runs", [tmp_path / "sweep"]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0][1:8] == [
        "2",
        "60.0 ± 14.1",
        "60.0 ± 14.1",
        "70.0 ± 14.1",
        "0.450 ± 0.212",
        "4.00 ± 0.00",
        "2 ± 0",
    ]
    assert "fedavg" in cells[1][0]
    assert cells[1][1:7] == ["1", "25.0", "25.0", "35.0", "", ""]
    assert cells[2][5:7] == ["4", "41"]
