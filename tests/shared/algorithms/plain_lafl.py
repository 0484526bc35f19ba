"""A reference LAFL-CPN without tiers, with W by autograd through equation 7; it shares the loop and RandAugment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.data.augmentation import augmented_apart
from shared.training.loop import Batch, batches, train
from tests.shared.algorithms.flat import averaged, stream


@dataclass
class Client:
    """A client's state."""

    model: TensorMap = field(default_factory=dict)
    weights: TensorMap = field(default_factory=dict)
    visits: int = 0
    passes: list[int] = field(default_factory=list)
    shifts: list[float] = field(default_factory=list)


@dataclass
class Plain:
    """A run: the algorithm's options, the clients, the global model."""

    experiment: Experiment
    p: int
    eta: float = 1.0
    s: float = 80.0
    clamp: bool = True
    own_statistics: bool = True
    clients: dict[int, Client] = field(default_factory=dict)

    def run(self, num_rounds: int) -> TensorMap:
        """Returns the global model after the given number of rounds with all clients."""
        seats, model = self.experiment.population.seats, self.experiment.initial
        self.clients = {seat.number: Client() for seat in seats}
        sizes = [len(seat.train) for seat in seats]
        for round_no in range(1, num_rounds + 1):
            trained = [self._visit(seat.number, round_no, model) for seat in seats]
            model = averaged(model, trained, sizes, sum(sizes))
        return model

    def _visit(self, seat: int, round_no: int, received: TensorMap) -> TensorMap:
        client = self.clients[seat]
        client.visits += 1
        start = self._mixed(client, seat, round_no, received)
        models.write_state(self.experiment.model, start)
        drawn = self._batches(seat, round_no, "batches", self.experiment.population.seats[seat].train)
        train(self.experiment.model, drawn, lr=self.experiment.spec.lr)
        client.model = models.read_state(self.experiment.model)
        return client.model

    def _mixed(self, client: Client, seat: int, round_no: int, received: TensorMap) -> TensorMap:
        top = [
            name
            for layer in self.experiment.layers[max(len(self.experiment.layers) - self.p, 0) :]
            for name in layer.parameters
        ]
        if client.visits == 1 or self.p == 0:
            return received
        client.weights = client.weights or {name: torch.ones_like(received[name]) for name in top}
        own = self.experiment.population.seats[seat].train
        generator = torch.Generator().manual_seed(self._seed(seat, round_no, "draw"))
        drawn = own[torch.randperm(len(own), generator=generator)[: round(self.s / 100 * len(own))].numpy()]
        losses: list[float] = []
        while not losses or (
            client.visits == 2 and len(losses) < 50 and not (len(losses) >= 10 and np.std(losses[-10:]) < 0.1)
        ):
            found = [
                self._step(client, received, top, batch)
                for batch in self._batches(seat, round_no, f"weights {len(losses)}", drawn)
            ]
            losses.append(sum(loss * n for loss, n in found) / sum(n for _, n in found))
        client.passes.append(len(losses))
        client.shifts.append(self._shift(client, received, top))
        return self._mix(client, received, top)

    @staticmethod
    def _shift(client: Client, received: TensorMap, top: list[str]) -> float:
        """Returns |(1 - W) d| / |d| over the mixed parameters, in numpy."""
        d = np.concatenate([(received[n] - client.model[n]).double().numpy().ravel() for n in top])
        w = np.concatenate([client.weights[n].detach().double().numpy().ravel() for n in top])
        return float(np.linalg.norm((1 - w) * d) / np.linalg.norm(d))

    def _mix(self, client: Client, received: TensorMap, top: list[str]) -> TensorMap:
        mixed = {n: client.model[n] + (received[n] - client.model[n]) * client.weights[n] for n in top}  # (7)
        return {**received, **mixed}

    def _step(self, client: Client, received: TensorMap, top: list[str], batch: Batch) -> tuple[float, int]:
        for weight in client.weights.values():
            weight.requires_grad_(True)
        x, y = batch
        loss = functional.cross_entropy(
            functional_call(self.experiment.model, self._mix(client, received, top), (x,)), y
        )
        slopes = torch.autograd.grad(loss, [client.weights[name] for name in top])
        for name, slope in zip(top, slopes, strict=True):
            moved = client.weights[name].detach() - self.eta * slope  # (8)
            client.weights[name] = moved.clamp(0, 1) if self.clamp else moved
        return loss.item(), len(y)

    def _batches(self, seat: int, round_no: int, purpose: str, indices: Any) -> Any:
        data, generator = self.experiment.data, torch.Generator().manual_seed(self._seed(seat, round_no, purpose))
        x, y = data.train_x[indices], data.train_y[indices]
        if self.experiment.spec.augment is not None:  # a copy of each image expands the set
            seeds = [self._seed(seat, round_no, f"augmented|train {index}") for index in indices]
            copies = augmented_apart(torch.from_numpy(x)[:, None], self.experiment.spec.augment, seeds)[:, 0]
            x, y = np.concatenate([x, copies.numpy()]), np.concatenate([y, y])
        drawn = batches(
            x, y, np.arange(len(y)), batch_size=self.experiment.spec.batch_size, generator=generator, epochs=1
        )
        if not self.own_statistics:
            return drawn
        shares = data.train_x[self.experiment.population.seats[seat].train].astype(np.float64) / 255
        mean, std = shares.mean(), shares.std()  # one channel; (4), (5)
        return (((((x * 0.5 + 0.5) - mean) / std).float(), y) for x, y in drawn)  # (3)

    def _seed(self, seat: int, round_no: int, purpose: str) -> int:
        return stream(self.experiment.spec.seed, f"seat {seat}", round_no, 0, 0, purpose)
