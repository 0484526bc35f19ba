"""Targets of numbers on the scale on which models train: of mean 0 and deviation 1 over the training samples.

The gradient of an error grows with the target. Prices in the millions would need another learning rate than others do,
and the usual ones diverge. So such targets are stored standardised, in float64 before they become float32; `Numbers`
keeps mean and deviation, by which predictions and errors get their own unit again.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shared.training.data.reading import Reading
from shared.training.data.sources import LABELS, Arrays, DataMalformed
from shared.training.description import Numbers, Target

SMALL, LARGE = 0.1, 10.0
"""Without being asked, targets are standardised where a mean or deviation is beyond `LARGE`, or all deviations below
`SMALL`."""


def standardised(
    arrays: Arrays, raw: Arrays, target: Target, wanted: bool | None, reading: Reading, where: str
) -> tuple[Arrays, Target, Reading]:
    """Returns arrays with standardised targets, their description, and the reading with a note; or all as they are.

    Args:
        arrays: as they are stored.
        raw: as the source gave them.
        target: what the targets are.
        wanted: whether targets are standardised; None means that their size decides.
        reading: how the data were read.
        where: the data set, for messages.

    Raises:
        DataMalformed: targets that are no numbers are to be standardised.
    """
    if not isinstance(target, Numbers):
        if wanted:
            raise DataMalformed(f"{where}: data.standardise_target is for numbers, these targets are {target.kind}")
        return arrays, target, reading
    own = {key: np.asarray(raw[key], np.float64).reshape(arrays[key].shape) for key in LABELS}
    mean, std = own["train_y"].mean(0), own["train_y"].std(0)
    if wanted is False or (
        wanted is None and max(np.abs(mean).max(), std.max()) <= LARGE and not 0 < std.max() < SMALL
    ):
        return arrays, target, reading
    std = np.where(std > 0, std, 1.0)
    made = {key: ((values - mean) / std).astype(np.float32) for key, values in own.items()}
    scaled = replace(target, mean=tuple(mean.ravel().tolist()), std=tuple(std.ravel().tolist()))
    return arrays | made, scaled, _told(reading, scaled)


def _told(reading: Reading, target: Numbers) -> Reading:
    means, stds = target.mean or (), target.std or ()
    said = f"mean {means[0]:.6g}, deviation {stds[0]:.6g}" if math.prod(target.shape) == 1 else "each number by its own"
    note = f"targets are standardised ({said}): metrics are in their own unit, losses in standard deviations"
    column = reading.target
    if column is not None and len(means) == 1:
        column = column.model_copy(update={"mean": means[0], "std": stds[0]})
    return reading.model_copy(update={"notes": (*reading.notes, note), "target": column})
