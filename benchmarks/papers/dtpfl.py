"""DTPFL: do groups help where a threshold finds them, and do both halves together give accuracy and seconds?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.spatial.distance import squareform

from benchmarks.papers.claims import Claim
from benchmarks.papers.measured import Measured
from benchmarks.papers.page import Column, Curves, Page, Table
from benchmarks.papers.settings import Setting
from shared.core.clustering import groups_at
from shared.results.folder import read_run
from shared.run_records.rounds import RoundInfo

# A dense network, for speed.
SMALL = ("model=mlp", "data.n_train=4500", "test_fraction=0.6", "num_rounds=15", "batch_size=16")
FIG6 = ("model=mlp", "data.n_train=5000", "num_edges=10", "num_devices=10")
WHOLE = (
    *("model=mlp", "data.n_train=3000", "test_fraction=0.6", "num_rounds=15", "num_devices=30", "arrival_rate=0.2"),
    *("devices.profile.compute_sps={name: uniform, low: 2, high: 10}", "edge_link.worker_sps=20"),
)
FIG5 = (*FIG6, "test_fraction={name: uniform, low: 0.3, high: 1}", "num_rounds=40", "local_epochs=1")
OWN_DATA = ("schedule=own_data", "divide_batch=false", "batch_size=11")
AUTO, TENTH = ("algorithm.params.threshold=auto",), ("algorithm.params.threshold=0.1",)
HUNDREDTH = ("algorithm.params.threshold=0.01",)
TABLE_1 = {
    1: (67.1, 66.4, 66.5, 66.6, 67.1),
    2: (64.1, 65.1, 64.5, 64.7, 65.3),
    3: (62.4, 62.3, 63.1, 62.3, 62.9),
}
"""The paper's mean accuracies by personal layers, per cent, for these R1, the most valuable first."""
R1S = (5, 10, 1, 3, 7)
TABLE_2 = (0.4, 0.35, 0.3, 0.1, 0.01, 0.001)
"""The thresholds of the paper's table 2."""
FEDAVG, SGD = ("algorithm=fedavg",), ("algorithm=local_sgd",)
FEDPER = ("algorithm=fedper", "algorithm.params.personal_layers=1")
TRANSFER = ("algorithm=transfer", "algorithm.params.tune_rounds=5")


def _r1(rounds: int) -> tuple[str, ...]:
    return (f"algorithm.params.pretrain_rounds={rounds}",)


FIG5_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dtpfl": ("DTPFL, TH 0.01", (*HUNDREDTH, *_r1(10))),
    "auto": ("DTPFL, TH `auto`", (*AUTO, *_r1(10))),
    "fedper": ("FedPer", FEDPER),
    "transfer": ("TL", ("algorithm=transfer", "algorithm.params.tune_rounds=10")),
    "sgd": ("SGD, every user alone", SGD),
    "fedavg": ("FedAvg", FEDAVG),
    "fedprox": ("FedProx, mu 0.1", ("algorithm=fedprox", "algorithm.params.mu=0.1")),
}


def _settings() -> tuple[Setting, ...]:
    whole, skew, fig6 = "users whose devices share the work", "gamma 0.8", "Fig. 6, small"
    found = []

    def add(key: str, spec: str, changes: Sequence[str], what: str, where: str) -> None:
        found.append(Setting(key, spec, tuple(changes), what=what, where=where))

    add("whole_free", "dtpfl_whole", WHOLE, "DTPFL, shares by free compute", whole)
    add("whole_fedavg", "dtpfl_whole", (*WHOLE, *OWN_DATA, *FEDAVG), "FedAvg, own data", whole)
    add("whole_own", "dtpfl_whole", (*WHOLE, *OWN_DATA), "DTPFL, own data", whole)
    add("whole_fedper", "dtpfl_whole", (*WHOLE, *OWN_DATA, *FEDPER), "FedPer, own data", whole)
    add("fig6_r10", "dtpfl_fig6_small", (*FIG6, *TENTH, *_r1(10)), "DTPFL, TH 0.1, R1 10", fig6)
    add("fig6_sgd", "dtpfl_fig6_small", (*FIG6, *SGD), "SGD, every user alone", fig6)
    add("fig6_auto", "dtpfl_fig6_small", (*FIG6, *AUTO, *_r1(10)), "DTPFL, TH `auto`, R1 10", fig6)
    add("fig6_r5", "dtpfl_fig6_small", (*FIG6, *TENTH, *_r1(5)), "DTPFL, TH 0.1, R1 5", fig6)
    add("skew_dtpfl", "dtpfl_small", (*SMALL, *AUTO), "DTPFL", skew)
    add("skew_fedper", "dtpfl_small", (*SMALL, *FEDPER), "FedPer", skew)
    add("skew_sgd", "dtpfl_small", (*SMALL, *SGD), "SGD, every user alone", skew)
    add("skew_fedavg", "dtpfl_small", (*SMALL, *FEDAVG), "FedAvg", skew)
    add("fig6_fedper", "dtpfl_fig6_small", (*FIG6, *FEDPER), "FedPer", fig6)
    add("skew_transfer", "dtpfl_small", (*SMALL, *TRANSFER), "TL", skew)
    for rounds in (1, 3, 7, 10):
        add(f"skew_r{rounds}", "dtpfl_small", (*SMALL, *AUTO, *_r1(rounds)), f"DTPFL, R1 {rounds}", skew)
    for gamma, key in ((1, "apart"), (0.2, "even")):
        changes = (*SMALL, f"partition.gamma={gamma}")
        add(f"{key}_dtpfl", "dtpfl_small", (*changes, *AUTO), f"DTPFL, gamma {gamma}", "")
        add(f"{key}_fedavg", "dtpfl_small", (*changes, *FEDAVG), f"FedAvg, gamma {gamma}", "")
    add("whole_finish", "dtpfl_whole", (*WHOLE, "schedule=finish_time"), "DTPFL, shares by finishing time", whole)
    add("fig6_fedavg", "dtpfl_fig6_small", (*FIG6, *FEDAVG), "FedAvg", fig6)
    for key, (what, method) in FIG5_METHODS.items():
        add(f"fig5_{key}", "dtpfl_fig6_small", (*FIG5, *method), what, "Fig. 5, small")
    add("table2", "dtpfl_table2", (), "DTPFL, 20 users", "table 2")
    for rounds in R1S:
        for layers in TABLE_1:
            layers_and_r1 = (f"algorithm.params.personal_layers={layers}", *_r1(rounds))
            what = f"P {layers}, R1 {rounds}"
            add(f"layers{layers}_r{rounds}", "dtpfl_small", (*HUNDREDTH, *layers_and_r1), what, "table 1, small")
    return tuple(found)


def users_and_groups(folder: Path, rounds: Sequence[RoundInfo]) -> Mapping[str, Sequence[float | None]]:
    """By round, of the models that users use on their own test samples: mean, least and best accuracy; and the groups.

    The last value of the former is that at the end of the run. In the round of the clustering, otherwise None: the
    number of `groups`, and of those at other thresholds; `within`, the largest distance of two users of one kind;
    `between`, the least of two kinds.
    """
    info = read_run(folder)
    own = info.accuracy_of == "mean over clients"
    spreads = [row.clients.get("own" if own else "received") for row in rounds]
    spreads[-1] = info.spread_of_used(info.headline, own=own) or spreads[-1]
    found: dict[str, list[float | None]] = {
        "users": [each.mean if each else None for each in spreads],
        "users_least": [each.min if each else None for each in spreads],
        "users_best": [each.max if each else None for each in spreads],
    }
    groups = [row.figures.get("cloud", {}) for row in rounds]
    if any("groups" in each for each in groups):
        parts = [_distances(each) if "groups" in each else (None, None) for each in groups]
        found["groups"] = [len(each["groups"]) if "groups" in each else None for each in groups]
        for threshold in TABLE_2:
            at = [len(groups_at(each["linkage"], threshold)) if "groups" in each else None for each in groups]
            found[f"groups_at_{threshold}"] = list(at)
        found["within"], found["between"] = [part[0] for part in parts], [part[1] for part in parts]
    return found


def _distances(figures: Mapping[str, object]) -> tuple[float, float]:
    """The largest distance of two users of one of five kinds, and the least of users of two kinds."""
    users = np.array([int(str(user).rpartition("-")[2]) for user in figures["users"]])  # type: ignore[attr-defined]
    kind = users * 5 // len(users)
    distances = squareform(np.array(figures["distances"]))
    same = kind[:, None] == kind[None, :]
    return float(distances[same].max()), float(distances[~same].min())


def accuracy(run: Measured) -> float | None:
    """Mean accuracy over users of the models that they use at the end, per cent."""
    return _percent(run, "users")


def seconds(run: Measured) -> float:
    """Simulated seconds of all rounds."""
    return run.total("simulated_s")


def _percent(run: Measured, name: str) -> float | None:
    value = run.last(name)
    return None if value is None else 100 * value


USERS = (
    Column("mean over users, %", accuracy),
    Column("least", lambda run: _percent(run, "users_least")),
    Column("best", lambda run: _percent(run, "users_best")),
)
GROUPS = (
    Column("groups", lambda run: run.last("groups")),
    Column("one kind at most apart", lambda run: run.last("within"), 3),
    Column("two kinds at least", lambda run: run.last("between"), 3),
)


def _groups_at(threshold: float) -> Column:
    return Column(f"TH {threshold}", lambda run: run.last(f"groups_at_{threshold}"))


TABLE_3 = "table 3"
FIG_4, FIG_5, FIG_6 = (f"Fig. {number}; taken as 1 point" for number in (4, 5, 6))
UNTRIED = "not tried; taken as 1 point"
IN_POINTS: tuple[tuple[str, str, float, str, str], ...] = (
    ("gamma 0.8: more accurate than FedAvg", f"72.04 against 41.67 ({TABLE_3})", 30.37, "skew_dtpfl", "skew_fedavg"),
    ("gamma 1: more accurate than FedAvg", f"84.29 against 27.91 ({TABLE_3})", 56.38, "apart_dtpfl", "apart_fedavg"),
    ("gamma 0.2: FedAvg a little ahead", f"57.39 against 55.79 ({TABLE_3})", 1.6, "even_fedavg", "even_dtpfl"),
    ("more accurate at gamma 1 than at 0.2", f"84.29 against 55.79 ({TABLE_3})", 28.5, "apart_dtpfl", "even_dtpfl"),
    ("FedAvg less accurate at 1 than at 0.2", f"27.91, 57.39 ({TABLE_3})", -29.48, "apart_fedavg", "even_fedavg"),
    ("more accurate than FedPer", f"FedPer a little below ({FIG_4})", 1.0, "skew_dtpfl", "skew_fedper"),
    ("more accurate than TL", f"TL a little below ({FIG_4})", 1.0, "skew_dtpfl", "skew_transfer"),
    ("more accurate than SGD, every user alone", f"the highest mean ({FIG_4})", 1.0, "skew_dtpfl", "skew_sgd"),
    ("SGD more accurate than FedAvg", f"FedAvg below SGD ({FIG_4})", 1.0, "skew_sgd", "skew_fedavg"),
    ("CIFAR-100, TH 0.1, R1 10: more accurate than SGD", f"better than SGD ({FIG_6})", 1.0, "fig6_r10", "fig6_sgd"),
    ("the same with R1 5", "R1 matters little (table 1; taken as 1 point)", 1.0, "fig6_r5", "fig6_sgd"),
    ("the same with R1 10 and TH `auto`", "section 3.4.2; taken as 1 point", 1.0, "fig6_auto", "fig6_sgd"),
    ("the same for FedPer", f"better than SGD ({FIG_6})", 1.0, "fig6_fedper", "fig6_sgd"),
    ("there too more accurate than FedPer", f"more users with higher ({FIG_6})", 1.0, "fig6_r10", "fig6_fedper"),
    ("FedAvg less accurate than SGD there", f"for every user ({FIG_6})", -1.0, "fig6_fedavg", "fig6_sgd"),
    ("P 1: more accurate than P 2, R1 5", "67.1 against 64.1 (table 1)", 3.0, "layers1_r5", "layers2_r5"),
    ("P 1: more accurate than P 3, R1 5", "67.1 against 62.4 (table 1)", 4.7, "layers1_r5", "layers3_r5"),
    ("P 1: more accurate than P 3, R1 1", "66.5 against 63.1 (table 1)", 3.4, "layers1_r1", "layers3_r1"),
    ("P 1: more accurate than P 3, R1 10", "66.4 against 62.3 (table 1)", 4.1, "layers1_r10", "layers3_r10"),
    ("CIFAR-100, TH 0.01: more accurate than FedPer", f"the highest mean ({FIG_5})", 1.0, "fig5_dtpfl", "fig5_fedper"),
    ("the same with TH `auto`", f"section 3.4.2 ({FIG_5})", 1.0, "fig5_auto", "fig5_fedper"),
    ("there more accurate than SGD", f"the highest mean ({FIG_5})", 1.0, "fig5_dtpfl", "fig5_sgd"),
    ("there more accurate than TL", f"the highest mean ({FIG_5})", 1.0, "fig5_dtpfl", "fig5_transfer"),
    ("there more accurate than FedAvg", f"the highest mean ({FIG_5})", 1.0, "fig5_dtpfl", "fig5_fedavg"),
    ("there more accurate than FedProx", f"the highest mean ({FIG_5})", 1.0, "fig5_dtpfl", "fig5_fedprox"),
    ("ours: with R1 10 `auto` is more accurate than TH 0.1", UNTRIED, 1.0, "fig6_auto", "fig6_r10"),
    ("both halves together: more accurate than FedAvg, own data", UNTRIED, 1.0, "whole_free", "whole_fedavg"),
    ("both halves together: more accurate than FedPer, own data", UNTRIED, 1.0, "whole_free", "whole_fedper"),
    ("ours: DTPFL more accurate than FedPer, own data for both", UNTRIED, 1.0, "whole_own", "whole_fedper"),
    ("ours: the schedule makes DTPFL more accurate", UNTRIED, 1.0, "whole_free", "whole_own"),
)
"""Claims about accuracies: claim, the paper's figure, the claimed gain, and the two settings."""
SHORTER = "greatly shortened (section 3.4.6, Fig. 7; no number, taken as half of 88 s)"
IN_SECONDS: tuple[tuple[str, str, float, str, str], ...] = (
    ("the schedule greatly shortens rounds", SHORTER, -44.0, "whole_free", "whole_own"),
    ("ours: finishing time shortens further", "not tried; a tenth of 18 s", -1.8, "whole_finish", "whole_free"),
)
"""Claims about simulated seconds, likewise."""


PAGE = Page(
    name="dtpfl",
    hypotheses=(
        "Groups help where they are the true ones; a threshold finds them once last layers have moved far enough.",
        "At TH 0.1 on CIFAR-100, whether the groups are the true ones depends on R1.",
        "Both halves together keep DTPFL's lead over FedPer and FedAvg, in fewer seconds than with own data.",
    ),
    settings=_settings(),
    claims=(
        *(Claim(*row, accuracy) for row in IN_POINTS),
        *(Claim(*row, seconds, unit="s", decimals=0) for row in IN_SECONDS),
    ),
    tables={
        "fig6": Table(("fig6_r10", "fig6_auto", "fig6_r5", "fig6_sgd", "fig6_fedper", "fig6_fedavg"), USERS),
        "groups": Table(("fig6_r10", "fig6_auto", "fig6_r5"), GROUPS),
        "whole": Table(
            ("whole_free", "whole_finish", "whole_own", "whole_fedper", "whole_fedavg"),
            (*USERS, Column("simulated seconds", seconds, 0)),
        ),
        "table1": Table(
            tuple(f"layers{layers}_r{rounds}" for layers in TABLE_1 for rounds in sorted(R1S)),
            USERS,
            {
                f"layers{layers}_r{rounds}": f"{mean}"
                for layers, means in TABLE_1.items()
                for rounds, mean in zip(R1S, means, strict=True)
            },
        ),
        "table2": Table(("table2",), (*map(_groups_at, TABLE_2), *GROUPS[1:]), {"table2": "1, 5, 5, 5, 5, 15 groups"}),
        "fig5": Table(tuple(f"fig5_{key}" for key in FIG5_METHODS), USERS),
        "pretraining": Table(("skew_r1", "skew_r3", "skew_dtpfl", "skew_r7", "skew_r10"), USERS),
        "skew": Table(("skew_dtpfl", "skew_fedper", "skew_transfer", "skew_sgd", "skew_fedavg"), USERS),
    },
    curves={
        "dtpfl_fig6": Curves(
            "CIFAR-100: mean accuracy over users, on their own test samples",
            (
                ("fig6_r10", "users", "DTPFL, TH 0.1, R1 10"),
                ("fig6_auto", "users", "DTPFL, TH auto, R1 10"),
                ("fig6_r5", "users", "DTPFL, TH 0.1, R1 5"),
                ("fig6_sgd", "users", "SGD, every user alone"),
            ),
        ),
        "dtpfl_whole": Curves(
            "Both halves together: mean accuracy over users, on their own test samples",
            (
                ("whole_free", "users", "DTPFL, shares by free compute"),
                ("whole_own", "users", "DTPFL, own data"),
                ("whole_fedper", "users", "FedPer, own data"),
                ("whole_fedavg", "users", "FedAvg, own data"),
            ),
        ),
    },
    further=users_and_groups,
)
