"""`python -m benchmarks.simulators.by_pfl FD FOLDER JOB` runs FedAvg with pfl, a round on demand.

Two of these processes share the devices and add their sums with `torch.distributed`, as pfl does under `torchrun`.
Devices are not evaluated, except in the first round, which is left out.

pfl: Granqvist et al., NeurIPS 2024, arXiv:2404.06430; https://apple.github.io/pfl-research/
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.loops import LR, Job, Work, initial_model, prepared_data
from benchmarks.simulators.served import EndOfRounds, Rounds, opened

NEVER = 1_000_000


class Counted(nn.Module):
    """A model with the loss that pfl asks for; counts the devices, samples and steps of this process' round."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.work = model, [0, 0, 0]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a step."""
        self.train()
        self.work[2] += 1
        return functional.cross_entropy(self.model(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Of the first round's evaluation: nothing but a count."""
        return {"samples": Weighted(len(x), len(x))}


class OnDemand(TrainingProcessCallback):  # type: ignore[misc, unused-ignore]
    """Waits before each round until it is wanted."""

    def __init__(self, rounds: Rounds, counted: Counted) -> None:
        self._rounds, self._counted = rounds, counted

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Before the first round."""
        self._rounds.next()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """After each round."""
        self._rounds.did(Work(*self._counted.work))
        self._counted.work = [0, 0, 0]
        self._rounds.next()
        return False, Metrics()


def users(job: Job, counted: Counted, x: Tensor, y: Tensor) -> FederatedDataset:
    """The devices in turn, each with its samples in a new order at each visit."""

    def device(number: int) -> PyTorchTensorDataset:
        own = job.samples_of(number)
        order = torch.randperm(job.n_samples)
        counted.work[0] += 1
        counted.work[1] += job.n_samples
        return PyTorchTensorDataset((x[own][order], y[own][order]))

    def numbers() -> Iterator[int]:
        while True:
            yield from range(job.n_devices)

    return FederatedDataset(device, numbers().__next__)


def main() -> None:
    """Train until the pipe is closed."""
    rounds, folder, job = opened()
    counted = Counted(initial_model(folder, job))
    data = users(job, counted, *prepared_data(folder, job))
    model = PyTorchModel(counted, torch.optim.SGD, torch.optim.SGD(counted.parameters(), lr=1.0))
    params = NNAlgorithmParams(NEVER, NEVER, train_cohort_size=job.n_devices, val_cohort_size=None)
    train = NNTrainHyperParams(
        local_num_epochs=job.epochs, local_learning_rate=LR, local_batch_size=job.batch_size, local_max_grad_norm=None
    )
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    with suppress(EndOfRounds):
        FederatedAveraging().run(
            params, backend, model, train, callbacks=[OnDemand(rounds, counted)], send_metrics_to_platform=False
        )


if __name__ == "__main__":
    main()
