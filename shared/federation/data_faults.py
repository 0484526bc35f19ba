"""Devices whose training samples are wrong: `data.faults`.

A sample's fault is one of the device that has it, whoever trains on it. Which devices have faults, and what is drawn
for their samples, follows from the seed and the number of the seat alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np

from shared.core.errors import BadInput
from shared.core.number_sets import NumberSet
from shared.core.randomness import stream_seed
from shared.federation.population import Population, Seat
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.data.faults import bad_images, own_copy, wrong_labels
from shared.training.description import Classes
from shared.training.partition import SampledPartition
from shared.training.specs import FaultsSpec


class DataFaults:
    """The devices of a run that have faults, and the data as devices have them.

    The seats that train are ranked by a draw of each. Those with the lowest draws have faults, as many as the share
    rounds to. With `partition: sampled`, where there can be a million, a seat has faults if its draw is below it.

    Raises:
        BadInput: the faults are not defined for the data, or the share is of too few devices.
    """

    def __init__(self, spec: ExperimentSpec, how: FaultsSpec, data: Dataset, population: Population) -> None:
        self.spec, self.how, self.data, self.population = spec, how, data, population
        self.drawn = isinstance(spec.partition, SampledPartition)
        if how.labels is not None and not isinstance(data.target, Classes):
            cause = f"labels are classes, the targets of {data.name} are {data.target.kind}"
            raise BadInput(cause, field="data.faults.labels")
        if how.images is not None and not data.sample.images:
            raise BadInput(f"the samples of {data.name} are {data.sample.what}", field="data.faults.images")
        if self.drawn and spec.test_on and spec.test_fraction is not None:
            cause = "with partition sampled and test_fraction, a test sample may be a training sample of another device"
            raise BadInput(f"{cause}: no test_on is possible", field="data.faults")
        if not self.drawn and not len(self._exact):
            cause = f"{how.share_of_devices:g} of {population.n_training} devices that train is none"
            raise BadInput(cause, field="data.faults.share_of_devices")

    def __contains__(self, seat: int) -> bool:
        """Whether a seat has faults."""
        if not self.drawn:
            return seat in self._exact
        return self.population.role(seat) == "train" and self._draw(seat) < self.how.share_of_devices

    def data_of(self, seat: int | None) -> Dataset:
        """The data as a seat has them; None means an edge or the cloud.

        Where each sample is dealt to one device, this is the same for all: a schedule may move samples.
        """
        if not self.drawn:
            return self._dealt
        if seat is None or seat not in self:
            return self.data
        return self._with_faults([self.population.seat(seat)])

    def _draw(self, seat: int) -> float:
        return stream_seed(f"{self.spec.seed}|population|seat {seat}|faulty") / 2**63

    @cached_property
    def _exact(self) -> NumberSet:
        seats = [n for n in range(self.population.n_devices) if self.population.role(n) == "train"]
        ranked = sorted(seats, key=lambda seat: (self._draw(seat), seat))
        return NumberSet(ranked[: round(self.how.share_of_devices * len(seats))])

    @cached_property
    def _dealt(self) -> Dataset:
        return self._with_faults(self.population.seats.among(self._exact))

    def _with_faults(self, seats: Iterable[Seat]) -> Dataset:
        """The data in which the training samples of these seats have faults."""
        data, how = self.data, self.how
        x = data.train_x if how.images is None else own_copy(data.train_x)
        y = data.train_y if how.labels is None else own_copy(data.train_y)
        for seat in seats:
            key, own = f"{self.spec.seed}|population|seat {seat.number}", seat.train
            if how.images is not None:
                rng = np.random.default_rng(stream_seed(f"{key}|image faults"))
                x[own] = bad_images(data.train_x[own], how.images, rng)
            if how.labels is not None and isinstance(data.target, Classes):
                rng = np.random.default_rng(stream_seed(f"{key}|label faults"))
                y[own] = wrong_labels(data.train_y[own], data.target.n, how.labels, rng)
        return replace(data, train_x=x, train_y=y)
