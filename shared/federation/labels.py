"""The labels by which samples are divided among clients: classes, groups, or bins of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.core.errors import BadInput
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.description import Classes, Numbers
from shared.training.partition import ByClassPartition

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Labels:
    """The label of each sample.

    Attributes:
        train: of the data set's training samples, int64, (n,), each in 0..n-1; `test` alike.
        n: number of labels; 1 if samples have none that a partition could go by.
    """

    train: Ints
    test: Ints
    n: int


def labels_of(spec: ExperimentSpec, data: Dataset) -> Labels:
    """Returns the labels by which the spec's partition divides samples: by default the classes.

    Raises:
        BadInput: the partition needs labels, and the data have none of that kind; the message says what is possible.
    """
    how = spec.partition if isinstance(spec.partition, ByClassPartition) else None
    if how is not None and how.by == "group":
        return _groups(spec, data)
    if how is not None and how.bins is not None:
        return _bins(data, how.bins)
    if isinstance(data.target, Classes):
        return Labels(data.train_y, data.test_y, data.target.n)
    if how is not None:
        cause = f"{spec.partition.name} divides by class, and the targets of {data.name} are {data.target.kind}"
        raise BadInput(f"{cause}; possible are {', '.join(_possible(data))}", field="partition.name")
    return Labels(np.zeros(len(data.train_y), np.int64), np.zeros(len(data.test_y), np.int64), 1)


def _possible(data: Dataset) -> list[str]:
    """The partitions that this data set allows, as fields of a spec."""
    found = ["partition: iid"]
    if data.target == Numbers((1,)):
        found.append("bins of the target (partition.bins)")
    if data.train_group is not None:
        found += ["partition: by_writer (groups stay whole)", "labels from the groups (partition.by: group)"]
    return found


def _groups(spec: ExperimentSpec, data: Dataset) -> Labels:
    if data.train_group is None:
        raise BadInput(f"{data.name} has no groups (data.group, or the key train_group)", field="partition.by")
    if data.test_group is None:
        if spec.test_fraction is None:
            cause = f"{data.name} has no test_group by which test samples could be dealt; set test_fraction"
            raise BadInput(cause, field="partition.by")
        known, codes = np.unique(data.train_group, return_inverse=True)
        return Labels(codes.astype(np.int64), np.zeros(len(data.test_y), np.int64), len(known))
    n = len(data.train_group)
    known, codes = np.unique(np.concatenate([data.train_group, data.test_group]), return_inverse=True)
    return Labels(codes[:n].astype(np.int64), codes[n:].astype(np.int64), len(known))


def _bins(data: Dataset, n: int) -> Labels:
    """Bins of equally many training targets, cut at their quantiles; equal targets share a bin."""
    if data.target != Numbers((1,)):
        what = "several numbers" if isinstance(data.target, Numbers) else data.target.kind
        raise BadInput(
            f"bins are cut through one number, the targets of {data.name} are {what}", field="partition.bins"
        )
    train, test = (np.asarray(y)[:, 0].astype(np.float64) for y in (data.train_y, data.test_y))
    cuts = np.unique(np.quantile(train, np.arange(1, n) / n))
    of_train, of_test = (np.searchsorted(cuts, y, side="right").astype(np.int64) for y in (train, test))
    return Labels(of_train, of_test, len(cuts) + 1)
