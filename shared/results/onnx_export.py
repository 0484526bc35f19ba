"""A trained model as ONNX, with the preprocessing of numbers and images inside the graph.

The extra packages `onnx` and `onnxscript` write it; any ONNX runtime uses it, without StrataFL and without torch.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from shared.core.errors import NotFound
from shared.core.user_code import user_code
from shared.training.inference import TrainedModel
from shared.training.preprocessing import Preprocessing


class OnnxMissing(NotFound):
    """The packages that write ONNX are not installed; the message says how to install them."""

    code = "onnx_missing"


class WholeModel(nn.Module):
    """A module with what comes before and after it.

    It takes samples as they are: of a table, float64 (batch, inputs), numbers in their units, categories and indicators
    as 0 or 1 in the order of `input_names`; uint8 images, (batch, height, width[, channels]); else the module's inputs,
    in float64 where float32 does not hold them.
    It returns probabilities of classes, numbers in the target's unit, or the module's outputs of tokens.
    """

    mean: Tensor
    std: Tensor
    own_mean: Tensor
    own_std: Tensor

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.trained, self.module = trained, trained.module
        about = trained.preprocessing
        self.images, norm = about.description.sample.images, about.normalisation
        self.scales = norm is not None
        if norm is not None:
            self.register_buffer("mean", norm.mean)
            self.register_buffer("std", norm.std)
        self.channels = about.transform
        scale = about.scale
        self.is_scaled = scale is not None
        if scale is not None:
            self.register_buffer("own_mean", torch.tensor(scale.mean, dtype=torch.float64))
            self.register_buffer("own_std", torch.tensor(scale.std, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Returns what the model says of samples."""
        y: Tensor = self.module(self._prepared(x))
        return self.trained.finished(y)

    def _prepared(self, x: Tensor) -> Tensor:
        if self.images:
            planes = x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2)
            x = planes.to(torch.float32) / 255
        if self.is_scaled:
            x = (x - self.own_mean) / self.own_std
        plain = x.to(torch.float32) if x.is_floating_point() else x
        if not self.scales:
            return plain
        made = (plain - self.mean) / self.std
        return made if self.channels is None else self.channels(made)


def input_names(about: Preprocessing) -> list[str]:
    """The inputs of a table's model in their order: columns of numbers by name, categories as `column=category`."""
    found = []
    for column in about.reading.columns:
        if column.kind == "categories":
            found += [f"{column.name}={category}" for category in column.categories]
        else:
            found.append(f"{column.name} is missing" if column.kind == "indicator" else column.name)
    return found


def to_onnx(trained: TrainedModel) -> bytes:
    """Returns a model as ONNX: input `x`, output `probabilities`, `numbers` or `outputs`, any number of samples.

    Its metadata hold `preprocessing` (that of the results folder), `inputs` and `classes`, as JSON.

    Raises:
        OnnxMissing: `onnx` or `onnxscript` is not installed.
        UserCodeFailed: torch cannot write the module as ONNX.
    """
    for package in ("onnx", "onnxscript"):  # torch uses the second
        if find_spec(package) is None:
            needed = "`pip install onnx onnxscript`, or StrataFL with its extra: `pip install .[onnx]`"
            raise OnnxMissing(f"{package} is not installed: {needed}")
    import onnx

    about, whole = trained.preprocessing, WholeModel(trained).eval()
    kind = about.description.target.kind
    name = {"numbers": "numbers", "tokens": "outputs"}.get(kind, "probabilities")
    with tempfile.TemporaryDirectory() as folder, user_code(f"writing {about.module.name} as ONNX"):
        path = Path(folder, "model.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about its own exporter
            torch.onnx.export(
                whole,
                (_example(about),),
                path,
                input_names=["x"],
                output_names=[name],
                dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        made = onnx.load(path)
    for key, value in {
        "preprocessing": about.model_dump(mode="json"),
        "inputs": input_names(about),
        "classes": about.reading.classes,
    }.items():
        made.metadata_props.add(key=key, value=json.dumps(value, ensure_ascii=False))
    onnx.checker.check_model(made)
    content: bytes = made.SerializeToString()
    return content


def _example(about: Preprocessing) -> Tensor:
    """Two samples, as a model of one would be written for exactly one."""
    sample = about.description.sample
    if about.scale is not None:
        return torch.zeros(2, *sample.shape, dtype=torch.float64)
    if not sample.images:
        return sample.example(2)
    channels, height, width = sample.shape
    shape = (2, height, width) if channels == 1 else (2, height, width, channels)
    return torch.from_numpy(np.zeros(shape, np.uint8))
