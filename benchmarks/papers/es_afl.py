"""ES-AFL: does its supernet beat FedAvg's model, what holds it back, and do sub-networks shrink as in the paper?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.papers.claims import Claim, Value
from benchmarks.papers.measured import Measured
from benchmarks.papers.page import Column, Curves, Page, Table
from benchmarks.papers.settings import Setting
from shared.plots.subnetworks import sizes_of
from shared.run_records.rounds import RoundInfo

# MNIST of 16x16 pixels, an eighth of the units; 10 clients that all train, half of the paper's images for each.
SMALL = (
    "data={name: digit_domains, domains: [mnist], split: official, size: 16, n_train: 4000, n_test: 1000}",
    "model={name: vgg_mnist, width: 0.125}",
    *("num_devices=10", "held_out_fraction=0.0", "num_rounds=15", "eval_every=1", "local_epochs=1", "lr=0.1"),
)
RETAKEN = ("algorithm.params.statistics=retaken",)
METHODS = (
    ("fedavg", ("algorithm=fedavg",), "FedAvg"),
    ("es_afl", (), "ES-AFL"),
    ("retaken", RETAKEN, "ES-AFL, statistics retaken"),
    ("whole", ("algorithm.params.start=0", "algorithm.params.sigma=0"), "ES-AFL, nothing pruned"),
    ("random", (*RETAKEN, "algorithm.params.ties=random"), "ES-AFL, statistics retaken, ties random"),
    ("identity", ("algorithm.params.covariance=identity",), "ES-AFL, plain Gaussian noise"),
)
LAYERS, ROUNDS = 6, 15
THIRD = 5
"""A third of the rounds, as round 50 is of the paper's 150."""


def sizes(folder: Path, rounds: Sequence[RoundInfo]) -> Mapping[str, Sequence[float | None]]:
    """By round: the sub-networks' shares of the supernet's weights and operations, and of its units ever trained.

    `weights_N` is the share of the weights of layer N, from input to output; `units_trained` is that of the group of
    units of which the least were trained; `children_won` is the share of the clients whose child won.
    """
    found = {each.round_no: each for each in sizes_of(rounds)}
    names = ("weights", "multiply_adds", *(f"weights_{layer + 1}" for layer in range(LAYERS)))
    series: dict[str, list[float | None]] = {name: [] for name in (*names, "units_trained", "children_won")}
    for row in rounds:
        if row.round_no not in found:
            continue
        each, cloud = found[row.round_no], row.figures["cloud"]
        shares = (each.share("n_weights"), each.share("multiply_adds"), *each.shares("n_weights").values())
        for name, value in zip(names, shares, strict=True):
            series[name].append(value)
        series["units_trained"].append(min(cloud["units_trained"].values()))
        series["children_won"].append(cloud["children_won"] / row.n_used)
    return series


def _percent(name: str, round_no: int = ROUNDS) -> Value:
    def value(run: Measured) -> float | None:
        found = run.at(name, round_no)
        return None if found is None else 100 * found

    return value


def _late(name: str) -> Value:
    """The mean over the last third of the rounds, since two-class clients make accuracies go up and down, per cent."""

    def value(run: Measured) -> float | None:
        return 100 * statistics.fmean(each for each in run.series[name][ROUNDS - THIRD : ROUNDS] if each is not None)

    return value


def _share(name: str, round_no: int = ROUNDS) -> Value:
    """A share of the supernet, per cent; FedAvg trains and sends all of it."""
    found = _percent(name, round_no)
    return lambda run: found(run) if name in run.series else 100.0


def kilobytes(run: Measured) -> float | None:
    """What a client sends in the last round."""
    sent, used = run.at("device_bytes_up", ROUNDS), run.at("n_used", ROUNDS)
    return sent / used / 1e3 if sent and used else None


supernet, own, early = _late("global"), _late("own"), _percent("global", THIRD)
weights, operations = _share("weights"), _share("multiply_adds")

COLUMNS = (
    Column(f"global model, %, rounds {ROUNDS - THIRD + 1} to {ROUNDS}", supernet),
    Column(f"after round {THIRD}", early),
    Column("at the end", lambda run: 100 * run.final["global"]),
    Column("clients' own models, %", own),
    Column("weights, %", weights),
    Column("multiply-adds, %", operations),
    Column("sent up in the last round, kB a client", kilobytes, 0),
    Column("units trained in round 1, %", _share("units_trained", 1)),
)
TABLE_2 = "(table 2, MNIST)"
PAGE = Page(
    name="es_afl",
    hypotheses=(
        "The supernet is tested with batch-norm statistics of sub-networks; with its own it does better.",
        "With equal |gamma| all clients keep the same channels first; with ties broken apart more of it is trained.",
        "Clients' own models are as good as FedAvg's at a part of its weights, since fitness is nearly always 1.",
        "The shared covariance makes sub-networks smaller than plain Gaussian noise does.",
    ),
    settings=tuple(Setting(key, "es_afl_mnist", (*SMALL, *changes), what=what) for key, changes, what in METHODS),
    claims=(
        Claim(
            "the global model is more accurate than FedAvg's",
            f"96.23 against 94.83 {TABLE_2}",
            1.4,
            "es_afl",
            "fedavg",
            supernet,
        ),
        Claim(
            "the same, with the supernet's own statistics",
            f"96.23 against 94.83 {TABLE_2}",
            1.4,
            "retaken",
            "fedavg",
            supernet,
        ),
        Claim(
            "the same, and each client's own order of equal units",
            f"96.23 against 94.83 {TABLE_2}",
            1.4,
            "random",
            "fedavg",
            supernet,
        ),
        Claim(
            f"it converges faster (here: accuracy after round {THIRD})",
            "round 50 as FedAvg's round 150 (section 4.2, CIFAR-10 and FEMNIST; taken as 5 points)",
            5.0,
            "es_afl",
            "fedavg",
            early,
        ),
        Claim(
            "clients' own models are more accurate than FedAvg's",
            f"99.50 against 98.85 {TABLE_2}",
            0.65,
            "es_afl",
            "fedavg",
            own,
        ),
        Claim(
            "a client trains and sends a part of the weights, % of the whole",
            f"7.11 % {TABLE_2}",
            -92.89,
            "es_afl",
            "fedavg",
            weights,
            decimals=1,
        ),
        Claim(
            "and of the operations",
            f"2.49 times fewer {TABLE_2}, 40.2 %",
            -59.8,
            "es_afl",
            "fedavg",
            operations,
            decimals=1,
        ),
        Claim(
            "the shared covariance saves weights, % of the whole",
            "clearly (section 4.5, CIFAR-10; no number, taken as 5 points)",
            -5.0,
            "es_afl",
            "identity",
            weights,
            decimals=1,
        ),
        Claim(
            "and operations",
            "clearly (section 4.5, CIFAR-10; no number, taken as 5 points)",
            -5.0,
            "es_afl",
            "identity",
            operations,
            decimals=1,
        ),
        Claim(
            "ours: the supernet is more accurate with its own statistics",
            "not tried; taken as 2 points",
            2.0,
            "retaken",
            "es_afl",
            supernet,
        ),
        Claim(
            "ours: pruning costs the global model accuracy",
            "not tried; taken as 5 points",
            -5.0,
            "es_afl",
            "whole",
            supernet,
        ),
        Claim(
            "ours: and with each client's own order of equal units",
            "not tried; taken as 2 points",
            2.0,
            "random",
            "retaken",
            supernet,
        ),
    ),
    tables={
        "methods": Table(tuple(key for key, *_ in METHODS), COLUMNS),
        "layers": Table(
            ("es_afl", "retaken", "random", "identity"),
            tuple(
                Column(f"{name}, %", _percent(f"weights_{at}"))
                for at, name in enumerate(("conv 1", "conv 2", "conv 3", "linear 1", "linear 2", "output"), start=1)
            ),
        ),
    },
    curves={
        "es_afl_accuracy": Curves(
            "ES-AFL on MNIST, two classes a client: accuracy of the global model on test images",
            tuple((key, "global", what) for key, _, what in METHODS[:5]),
        ),
        "es_afl_sizes": Curves(
            "ES-AFL on MNIST, two classes a client: the sub-networks' share of the supernet",
            (
                ("es_afl", "weights", "weights"),
                ("identity", "weights", "weights, plain Gaussian noise"),
                ("es_afl", "multiply_adds", "multiply-adds"),
                ("identity", "multiply_adds", "multiply-adds, plain Gaussian noise"),
            ),
            y="share of the supernet",
        ),
    },
    further=sizes,
)
