"""Models as ONNX, whose runtime says the same of samples as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.results.onnx_export import to_onnx
from shared.training import models
from shared.training.data.open_data import open_data
from shared.training.data.unseen import unseen
from shared.training.inference import TrainedModel
from shared.training.preprocessing import ModuleDesign, Preprocessing
from shared.training.specs import DataSpec

RNG = np.random.default_rng(0)
N = 40
CLASSES = np.arange(N) % 3
TIMES = 1_700_000_000 + RNG.permutation(N * 6).reshape(N, 6).astype(np.float64)
BYTES = RNG.integers(0, 256, (N, 32, 32, 3)).astype(np.uint8)
NUMBERS = RNG.normal(size=(N, 6)).astype(np.float32)
COLOURS = {"mean": np.array([0.5, 0.4, 0.3]), "std": np.array([0.2, 0.3, 0.4])}


@pytest.mark.parametrize(
    ("model", "x", "y", "more"),
    [
        ("cnn_digits", BYTES[:, :12, :12, 0], CLASSES, {}),
        ("cnn_cifar10", BYTES, CLASSES, COLOURS),
        ("mlp", NUMBERS, NUMBERS[:, :4] > 0, {}),
        ("mlp", NUMBERS, NUMBERS[:, :2] * 1e6, {}),
        ("mlp", TIMES, CLASSES, {"mean": TIMES.mean(0), "std": TIMES.std(0)}),
        ("cnn_1d", RNG.normal(size=(N, 2, 50)).astype(np.float32), CLASSES, {}),
    ],
    ids=["grey images", "colours", "labels", "standardised numbers", "numbers beyond float32", "signals"],
)
def test_the_runtime_says_what_the_model_says(tmp_path: Path, model: str, x: Any, y: Any, more: dict[str, Any]) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra `onnx` is not installed")
    import onnxruntime

    np.savez(tmp_path / "m.npz", train_x=x, train_y=y, test_x=x, test_y=y, **more)
    spec = DataSpec.model_validate({"file": "m.npz"})
    data = open_data(spec, data_dir=tmp_path, cache_dir=tmp_path / "cache")
    kept = Preprocessing.of(spec, data, ModuleDesign(name=model), None)
    trained = TrainedModel(kept, models.built(kept.design, 3).state_dict())
    (found,) = onnxruntime.InferenceSession(to_onnx(trained)).run(None, {"x": x[:5]})
    expected = trained.finished(trained.outputs(unseen(x[:5], kept).x)).numpy()
    assert len(np.unique(expected)) > 5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
