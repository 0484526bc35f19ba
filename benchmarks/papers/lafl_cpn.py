"""LAFL-CPN: which of its three parts helps, does the learned mix move anything, and what does expanding the set do?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.papers.claims import Claim, Value
from benchmarks.papers.measured import Measured
from benchmarks.papers.page import Column, Curves, Page, Table
from benchmarks.papers.settings import Setting
from shared.run_records.rounds import RoundInfo

# Four of the paper's five domains, 200 images a client of 16x16 pixels, a network of five layers without batch-norm.
SMALL = (
    *("model=cnn_6_16", "partition.per_client=200", "data.n_test=1000"),
    *("num_rounds=12", "eval_every=3", "batch_size=16", "lr=0.1"),
)
EXPAND, NONE = ("augment.when=expand",), ("augment=null",)
FEDAVG = ("algorithm=fedavg",)
EXPANDED, REPLACED, PLAIN = "set expanded", "images replaced", "no augmentation"


def _param(name: str, value: object) -> str:
    return f"algorithm.params.{name}={value}"


METHODS = (
    ("fedavg", (*EXPAND, *FEDAVG), "FedAvg", EXPANDED),
    ("lafl", EXPAND, "LAFL-CPN", EXPANDED),
    ("plain_fedavg", (*NONE, *FEDAVG), "FedAvg", PLAIN),
    ("plain_own", (*NONE, _param("p", 0)), "LAFL-CPN without the mix", PLAIN),
    ("plain_lafl", NONE, "LAFL-CPN", PLAIN),
    ("plain_eta_1000", (*NONE, _param("eta", 1000)), "LAFL-CPN, eta 1000", PLAIN),
    ("plain_two", (*NONE, *FEDAVG, "local_epochs=2"), "FedAvg, two epochs a round", PLAIN),
    ("replace", FEDAVG, "FedAvg, images replaced", REPLACED),
    ("own", (*EXPAND, _param("p", 0)), "LAFL-CPN without the mix", EXPANDED),
    ("plain_mix", (*NONE, _param("normalise", "fixed")), "LAFL-CPN without own normalisation", PLAIN),
    ("plain_eta_100", (*NONE, _param("eta", 100)), "LAFL-CPN, eta 100", PLAIN),
    *(
        (
            f"{key}_{magnitude}",
            (*when, *FEDAVG, f"augment.magnitude={magnitude}"),
            f"FedAvg, magnitude {magnitude}",
            where,
        )
        for key, when, where in (("fedavg", EXPAND, EXPANDED), ("replace", (), REPLACED))
        for magnitude in (0, 3, 6)
    ),
)


def shifts(folder: Path, rounds: Sequence[RoundInfo]) -> Mapping[str, Sequence[float | None]]:
    """By round: the mean over edges of how far the start of training lies from the global model."""
    found = []
    for row in rounds:
        each = [home["relative_shift"] for home in row.figures.values() if "relative_shift" in home]
        found.append(statistics.fmean(each) if each else None)
    return {"relative_shift": found}


def _percent(name: str, round_no: int | None = None) -> Value:
    def value(run: Measured) -> float | None:
        found = run.last(name) if round_no is None else run.at(name, round_no)
        return None if found is None else 100 * found

    return value


EARLY = 6
model, own, early = _percent("global"), _percent("own_on_union"), _percent("global", EARLY)


def last_shift(run: Measured) -> float | None:
    """The mean over edges of `relative_shift` in the last round."""
    return run.last("relative_shift")


COLUMNS = (
    Column("global model, %", model),
    Column(f"after round {EARLY}", early),
    Column("clients' own models, %", own),
)
SHIFTS = (
    Column("relative shift, round 2", lambda run: run.at("relative_shift", 2), 5),
    Column("last round", last_shift, 5),
)
ABSTRACT = "3 to 19 % higher (abstract), read as points; taken as 3"
PAGE = Page(
    name="lafl_cpn",
    hypotheses=(
        "The gain over FedAvg is that of each client's own normalisation.",
        "With eta 1 the mix does not move the start of training: it moves by eta (theta_g - theta_l)^2 an element.",
        "Augmentation helps where it expands the set, as the paper says, and costs accuracy where it replaces images.",
    ),
    settings=tuple(
        Setting(key, "lafl_cpn_small", (*SMALL, *changes), what=what, where=where)
        for key, changes, what, where in METHODS
    ),
    claims=(
        Claim("higher accuracy than FedAvg on the union of all domains", ABSTRACT, 3.0, "lafl", "fedavg", model),
        Claim("the same, clients' own models", ABSTRACT, 3.0, "lafl", "fedavg", own),
        Claim("the same without augmentation", ABSTRACT, 3.0, "plain_lafl", "plain_fedavg", model),
        Claim(
            f"faster convergence (here: accuracy after round {EARLY})",
            "faster (abstract; no number, taken as 3 points)",
            3.0,
            "lafl",
            "fedavg",
            early,
        ),
        Claim(
            "own normalisation alone helps",
            "faster convergence, generalises better (section 3.2; no number, taken as 3 points)",
            3.0,
            "plain_own",
            "plain_fedavg",
            model,
        ),
        Claim(
            "the learned mix helps the global model",
            "generalises better (section 3.2; no number, taken as 1 point)",
            1.0,
            "plain_lafl",
            "plain_own",
            model,
        ),
        Claim(
            "the learned mix helps clients' own models",
            "keeps what is personal (section 3.2; no number, taken as 1 point)",
            1.0,
            "plain_lafl",
            "plain_own",
            own,
        ),
        Claim(
            "expanding the set by augmented copies helps",
            "more robust and accurate (section 3.2; no number, taken as 1 point)",
            1.0,
            "fedavg",
            "plain_fedavg",
            model,
        ),
        Claim(
            "ours: the same at equal numbers of steps (two epochs of the images alone)",
            "not tried; taken as 1 point",
            1.0,
            "fedavg",
            "plain_two",
            model,
        ),
        Claim(
            "ours: augmented images in the place of the others cost accuracy",
            "not tried; taken as 3 points",
            -3.0,
            "replace",
            "plain_fedavg",
            model,
        ),
        Claim(
            "ours: with eta 1000 the mix helps the global model",
            "not tried; taken as 1 point",
            1.0,
            "plain_eta_1000",
            "plain_own",
            model,
        ),
        Claim(
            "ours: with eta 1000 the mix helps clients' own models",
            "not tried; taken as 1 point",
            1.0,
            "plain_eta_1000",
            "plain_own",
            own,
        ),
    ),
    tables={
        "augmentation": Table(("fedavg", "lafl", "own", "plain_two", "replace"), COLUMNS),
        "expanded": Table(("fedavg_0", "fedavg_3", "fedavg_6", "fedavg"), COLUMNS),
        "replaced": Table(("replace_0", "replace_3", "replace_6", "replace"), COLUMNS),
        "parts": Table(
            ("plain_fedavg", "plain_own", "plain_mix", "plain_lafl", "plain_eta_100", "plain_eta_1000"),
            (*COLUMNS, *SHIFTS),
        ),
    },
    curves={
        "lafl_cpn_accuracy": Curves(
            "LAFL-CPN on four sets of digits: accuracy of the global model on their union",
            (
                ("fedavg", "global", "FedAvg, set expanded"),
                ("lafl", "global", "LAFL-CPN, set expanded"),
                ("plain_fedavg", "global", "FedAvg, no augmentation"),
                ("plain_lafl", "global", "LAFL-CPN, no augmentation"),
            ),
        )
    },
    further=shifts,
)
