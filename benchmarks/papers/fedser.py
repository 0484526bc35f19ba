"""FedSER: is it more accurate than other methods, each with its own best learning rate, and what of it helps?

Rates are chosen by a seed of their own, before the methods are compared with other seeds.
"""

from __future__ import annotations

from benchmarks.papers.claims import Claim
from benchmarks.papers.measured import Measured
from benchmarks.papers.page import Column, Curves, Page, Table
from benchmarks.papers.settings import Setting

SPEC = "fedser_cifar10_small"
# Half of the images and of the clients of that spec: as many images a client.
SMALL = ("data={name: cifar10, n_train: 3000, n_test: 2000}", "num_devices=8", "num_rounds=12", "eval_every=1")
TUNING_SEEDS = (11,)
RATES = (0.005, 0.01, 0.02, 0.04)
MUS = (0.25, 0.5, 1.75)
METHODS = {
    "fedavg": ("FedAvg", ("algorithm=fedavg",)),
    "fedprox": ("FedProx, mu 0.0001", ("algorithm={name: fedprox, params: {mu: 0.0001}}",)),
    "moon": ("MOON, mu 1", ("algorithm=moon",)),
    **{f"fedser_{mu}": (f"FedSER, mu {mu}", (f"algorithm.params.mu={mu}",)) for mu in MUS},
}
BEST = {"fedavg": 0.02, "fedprox": 0.04, "moon": 0.02, "fedser_0.25": 0.02, "fedser_0.5": 0.02, "fedser_1.75": 0.02}
"""The rate with which each method was most accurate with the tuning seed; a test compares it with the kept runs."""
BEST_MU = 0.25
"""FedSER's best weight, each at its own best rate."""
FEDSER = f"fedser_{BEST_MU}"
AS_GRADAUG = ("algorithm.params.widths=sandwich", "algorithm.params.align_corners=true")
CROP, NO_TRANSFORMS = ("augment=crop_flip",), ("algorithm.params.transforms=[]",)
ONE_CLIENT = ("num_devices=1", "partition=iid", "num_rounds=8")


def _tuning(method: str, lr: float) -> Setting:
    what, changes = METHODS[method]
    return Setting(
        f"tune_{method}_{lr}", SPEC, (*SMALL, *changes, f"lr={lr}"), TUNING_SEEDS, what=f"{what}, lr {lr}, tuning seed"
    )


def _compared(key: str, method: str, *more: str, note: str = "", lr: float | None = None) -> Setting:
    what, changes = METHODS[method]
    rate = lr or BEST[method]
    return Setting(key, SPEC, (*SMALL, *changes, f"lr={rate}", *more), what=f"{what}{note}, lr {rate}")


TUNING = tuple(_tuning(method, lr) for method in METHODS for lr in RATES)
COMPARED = (
    *(_compared(method, method) for method in METHODS if method != "fedser_0.5"),
    _compared("fedprox_0.02", "fedprox", lr=0.02),
    _compared("one_fedavg", "fedavg", *ONE_CLIENT, note=", one client with all images"),
    _compared("one_fedser", FEDSER, *ONE_CLIENT, note=", one client with all images"),
    _compared("crop_fedavg", "fedavg", *CROP, note=", crop and flip"),
    _compared("gradaug", FEDSER, *CROP, *AS_GRADAUG, note=" as GradAug's code, crop and flip"),
    _compared("plain", FEDSER, *NO_TRANSFORMS, note=", no transforms"),
    _compared("fedser_0.5", "fedser_0.5"),
    _compared("crop_fedser", FEDSER, *CROP, note=", crop and flip"),
    _compared("wide_fedavg", "fedavg", "model.name=cnn_cifar10", note=", wider network"),
    _compared("wide_fedser", FEDSER, "model.name=cnn_cifar10", note=", wider network"),
)


def accuracy(run: Measured) -> float | None:
    """Of the global model on test images after the last round, per cent."""
    value = run.last("global")
    return None if value is None else 100 * value


def own(run: Measured) -> float | None:
    """Mean over clients of their own models on their own test samples after the last round, per cent."""
    value = run.last("own")
    return None if value is None else 100 * value


def _after(round_no: int) -> Column:
    def value(run: Measured) -> float | None:
        found = run.at("global", round_no)
        return None if found is None else 100 * found

    return Column(f"after round {round_no}", value)


def _claim(text: str, paper: str, gain: float, ours: str, other: str) -> Claim:
    return Claim(text, paper, gain, ours, other, accuracy)


TABLE_1 = "16 clients of CIFAR-10, 100 rounds (section 3.3)"
UNTRIED = "not tried; taken as 1 point"
PAGE = Page(
    name="fedser",
    hypotheses=(
        "With one rate for all, FedSER is compared unfairly: its loss weighs 1 + n mu.",
        "Few epochs are not the cause: one client alone with all images and 40 epochs gains nothing either.",
        "The network is too small to spare capacity for its sub-networks.",
    ),
    settings=(*TUNING, *COMPARED),
    claims=(
        _claim("more accurate than FedAvg, each at its best", f"+2.9, {TABLE_1}", 2.9, FEDSER, "fedavg"),
        _claim("the same with the paper's mu 1.75", f"+2.9, {TABLE_1}", 2.9, "fedser_1.75", "fedavg"),
        _claim("more accurate than MOON, each at its best", f"+1.7, {TABLE_1}", 1.7, FEDSER, "moon"),
        _claim(
            "more accurate than FedProx, each at its best",
            f"above FedAvg, below MOON, {TABLE_1}; taken as 1.7",
            1.7,
            FEDSER,
            "fedprox",
        ),
        _claim(
            "the same against FedProx at FedAvg's rate",
            f"the same, {TABLE_1}; taken as 1.7",
            1.7,
            FEDSER,
            "fedprox_0.02",
        ),
        _claim(
            "it makes a single client's model generalise better (40 epochs, all images)",
            "the idea (section 1; no number, taken as 2.9 points)",
            2.9,
            "one_fedser",
            "one_fedavg",
        ),
        _claim("ours: transforms help", UNTRIED, 1.0, FEDSER, "plain"),
        _claim("ours: with crop and flip for both, better than FedAvg", UNTRIED, 1.0, "crop_fedser", "crop_fedavg"),
        _claim("ours: as GradAug's code has it, better than FedAvg", UNTRIED, 1.0, "gradaug", "crop_fedavg"),
        _claim("ours: with a wider network, better than FedAvg", UNTRIED, 1.0, "wide_fedser", "wide_fedavg"),
    ),
    tables={
        "tuning": Table(tuple(each.key for each in TUNING), (Column("accuracy, %", accuracy),)),
        "methods": Table(
            tuple(each.key for each in COMPARED),
            (_after(4), _after(8), Column("at the end, %", accuracy), Column("clients' own models, %", own)),
        ),
    },
    curves={
        "fedser_accuracy": Curves(
            "FedSER on CIFAR-10, 8 clients, each method at its best rate: accuracy of the global model",
            tuple((key, "global", METHODS[key][0]) for key in ("fedavg", "fedprox", "moon", FEDSER, "fedser_1.75")),
        )
    },
)
