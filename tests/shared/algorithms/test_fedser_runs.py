"""FedSER through the three tiers: the part of the paper's claim that was reproduced, large encoders, large images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.training.data.augmentation import resized
from shared.training.data.dataset import as_batch
from shared.training.models import write_state
from shared.training.subnetworks.width_slices import narrowed
from tests.shared.algorithms.layouts import Ended, ended, federation


def accuracy(done: Ended, *, width: float = 1.0, side: int = 8) -> float:
    """Returns the accuracy of the run's model as a sub-network of this width on test images at this resolution."""
    model, data = done.experiment.model, done.experiment.data
    write_state(model, done.model)
    seen = resized(resized(as_batch(data.test_x), (side, side)), (8, 8))
    with torch.no_grad(), narrowed(model.eval(), width, "running"):
        return float((model(seen).argmax(1).numpy() == data.test_y).mean())


@pytest.mark.slow
async def test_sub_networks_and_coarse_images_are_classified_better_than_with_fedavg(tmp_path: Path) -> None:
    """Section 2.3: sub-networks learn more general representations. The whole network's accuracy hardly falls."""
    spec = {
        "seed": 2,
        "data": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "num_devices": 10,
        "num_edges": 2,
        "num_rounds": 15,
        "local_epochs": 2,
        "batch_size": 16,
        "lr": 0.1,
        "eval_every": 15,
    }
    async with federation(tmp_path, agent_devices=(10,)) as fed:
        plain, ours = [await ended(fed, await fed.submit({**spec, "algorithm": name})) for name in ("fedavg", "fedser")]
    assert accuracy(ours, width=0.8) > accuracy(plain, width=0.8) + 0.02
    assert accuracy(ours, width=0.8, side=5) > accuracy(plain, width=0.8, side=5) + 0.05
    assert accuracy(ours, side=5) > accuracy(plain, side=5)
    assert accuracy(ours) > max(accuracy(plain) - 0.03, 0.88)


def stand_in(folder: Path, name: str, side: int, n_classes: int) -> Path:
    """Writes a data set's archive with noise: four training and two test images."""
    rng, labels = np.random.default_rng(0), np.linspace(0, n_classes - 1, 4).astype(np.int64)
    images = rng.integers(0, 256, (6, side, side, 3), dtype=np.uint8)
    folder.mkdir()
    arrays = {"train_x": images[:4], "train_y": labels, "test_x": images[4:], "test_y": labels[:2]}
    np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize(
    ("data", "side", "n_classes", "model"),
    [pytest.param("cifar100", 32, 100, "resnet18", marks=pytest.mark.slow), ("tiny_imagenet", 64, 200, "cnn_6_16")],
)
async def test_a_round_of_a_large_encoder_and_of_200_classes_of_64_pixels(
    data: str, side: int, n_classes: int, model: str, tmp_path: Path
) -> None:
    spec: dict[str, Any] = {
        "algorithm": "fedser",
        "data": data,
        "model": {"name": model, "projection": 256},
        "num_devices": 2,
        "num_edges": 1,
        "num_rounds": 1,
        "batch_size": 2,
        "lr": 0.01,
        "momentum": 0.9,
    }
    folder = stand_in(tmp_path / "data", data, side, n_classes)
    async with federation(tmp_path, agent_devices=(2,), n_edges=1, common={"data_dir": folder}) as fed:
        run_id = await fed.submit(spec)
        await fed.finish(run_id)
        done = await ended(fed, run_id)
    assert [(row.outcome, row.n_samples) for row in done.rounds[0].seats] == [("used", 2)] * 2
    assert done.model["head.weight"].shape == (n_classes, 256)
    before, (first, *_) = done.experiment.initial, done.experiment.layers
    for name in (first.parameters[0], "features.projection.0.weight", "head.weight"):
        assert not torch.equal(done.model[name], before[name]), name
