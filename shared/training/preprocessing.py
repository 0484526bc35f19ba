"""All that the use of a trained model needs beside its tensors: `preprocessing.json` of a results folder."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field

from shared.core.errors import BadInput
from shared.core.records import Record, canonical
from shared.core.versions import versions
from shared.training.data.channel_statistics import ChannelNormaliser
from shared.training.data.checks import Description
from shared.training.data.dataset import Dataset
from shared.training.data.reading import Reading, Scale
from shared.training.description import Normalisation
from shared.training.loop import Transform
from shared.training.models import Design
from shared.training.specs import DataSpec


class ModuleDesign(Record):
    """How a model's module is built.

    Attributes:
        name: as in the spec's `model`; `params`, `projection` and `width` too.
        package: the plug-in from which it comes; None for StrataFL's own and torchvision's.
        package_sha256: of the package's files, as the run had them.
    """

    name: str
    params: dict[str, Any] = Field(default_factory=dict)
    projection: int | None = None
    width: float = 1.0
    package: str | None = None
    package_sha256: str | None = None


class Channels(Record):
    """Mean and deviation of each colour, of pixels scaled to 0..1: they take the place of `Preprocessing.mean`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Preprocessing(Record):
    """What becomes of a sample before the model, and what the model's outputs mean.

    Attributes:
        format: of this record.
        reading: columns with their categories, means and deviations; names of classes.
        source: what the spec says of the data's file, by which further files are read.
        sample: one sample as the model gets it, see `Sample`.
        target: what the outputs say, see `Classes`, `Numbers`, ...
        mean, std: of the inputs: `(x - mean) / std`, nested as a sample or so that they broadcast to it; images are
            first scaled to 0..1. None means that samples stay as they are.
        channels: where an algorithm normalises images by statistics of its own: those of all clients together.
        module: how the model is built.
        data_sha256: the digest of the data on which the model was trained.
        versions: of the packages with which it was trained.
    """

    format: Literal[1] = 1
    reading: Reading
    source: DataSpec
    sample: dict[str, Any]
    target: dict[str, Any]
    mean: Any = None
    std: Any = None
    channels: Channels | None = None
    module: ModuleDesign
    data_sha256: str
    versions: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of(cls, source: DataSpec, data: Dataset, module: ModuleDesign, transform: Transform | None) -> Self:
        """Returns the preprocessing of a run's data.

        Args:
            source: of the spec.
            data: the data set.
            module: how the model is built.
            transform: that of the run's algorithm before its global model.

        Raises:
            BadInput: the transform is code that cannot be written down.
        """
        if transform is not None and not isinstance(transform, ChannelNormaliser):
            raise BadInput("the algorithm changes samples before its model by code of its own")
        norm = _explicit(data)
        described = json.loads(json.dumps(Description(data.sample, data.target).as_json()))
        return cls(
            reading=data.reading,
            source=source,
            sample=described["sample"],
            target=described["target"],
            mean=None if norm is None else norm.mean.tolist(),
            std=None if norm is None else norm.std.tolist(),
            channels=None if transform is None else Channels(mean=transform.mean, std=transform.std),
            module=module,
            data_sha256=data.digest,
            versions=versions(),
        )

    @property
    def description(self) -> Description:
        """The sample and the target."""
        return Description.of_json({"sample": self.sample, "target": self.target})

    @property
    def design(self) -> Design:
        """What determines the module."""
        described, module = self.description, self.module
        params = json.dumps(module.params, sort_keys=True) if module.params else ""
        return Design(module.name, described.sample, described.target, module.projection, module.width, params)

    @property
    def normalisation(self) -> Normalisation | None:
        """The mean and deviation of the inputs."""
        return None if self.mean is None else Normalisation(torch.tensor(self.mean), torch.tensor(self.std))

    @property
    def scale(self) -> Scale | None:
        """What is done in float64 with numbers as they are, before they become float32; None if nothing is."""
        columns = self.reading.columns
        if not columns:
            return self.reading.scale
        shape = (sum(column.n_inputs for column in columns),)
        own = [(column.mean, column.std) for column in columns for _ in range(column.n_inputs)]
        later = zip(np.broadcast_to(self.mean, shape), np.broadcast_to(self.std, shape), strict=True)
        pairs = [(0.0, 1.0) if None in pair or then != (0, 1) else pair for pair, then in zip(own, later, strict=True)]
        return Scale(mean=[mean for mean, _ in pairs], std=[std for _, std in pairs])

    @property
    def transform(self) -> Transform | None:
        """What is done with a batch after `normalisation`."""
        return None if self.channels is None else ChannelNormaliser(self.channels.mean, self.channels.std)

    def to_json(self) -> bytes:
        """Returns the file, with the digest of its content."""
        fields = self.model_dump(mode="json")
        return (json.dumps({**fields, "sha256": self._digest}, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def of_json(cls, content: bytes) -> Self:
        """Returns what `to_json` has written.

        Raises:
            ValueError: it is damaged, was changed, or is of another version.
        """
        fields = json.loads(content)
        said = fields.pop("sha256", None) if isinstance(fields, dict) else None
        found = cls.model_validate_json(json.dumps(fields))
        if said != found._digest:
            raise ValueError("its sha256 is that of another content: it was changed")
        return found

    @property
    def _digest(self) -> str:
        return hashlib.sha256(canonical(self).encode()).hexdigest()


def _explicit(data: Dataset) -> Normalisation | None:
    """The normalisation of a data set; that of images without one is written out."""
    if data.normalisation is None and data.sample.images:
        return Normalisation(torch.tensor(0.5), torch.tensor(0.5))
    return data.normalisation
