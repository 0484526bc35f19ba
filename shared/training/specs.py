"""What a spec says of data, model and augmentation. Nothing here imports torch: reading a record needs none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.core.plugins import PluginParams
from shared.core.records import LEFT_OUT, Record
from shared.core.validation import Names
from shared.training.data.sources import DATASETS
from shared.training.table_specs import TABLES, Column, ColumnUse, CsvSpec, Missing, is_table

TargetKind = Literal["classes", "labels", "numbers", "tokens"]
"""What targets are: one class, any number of labels, numbers, or a class at each place of a sequence."""
Layout = Literal["channels_first", "channels_last"]
"""Which axis of a sample holds its channels."""
STRONGEST = 10
"""Upper bound on the magnitude of RandAugment's operations."""
TAKEN = frozenset({*DATASETS, "digit_domains"})
"""The names of data sets of other sources, which no file has."""
LabelFault = Literal["random", "flipped", "shifted"]
ImageFault = Literal["noise", "blur"]
Value = Annotated[float, Field(ge=-1e9, le=1e9)]


class FaultsSpec(Record):
    """Training samples of some devices that are wrong; at least one of `labels` and `images` is needed.

    Attributes:
        share_of_devices: share of the devices that train.
        labels: `random`: each label is drawn uniformly from all classes; `flipped`: class c of n becomes n - 1 - c;
            `shifted`: it becomes (c + 1) mod n.
        images: `noise`: Gaussian noise is added to each value; `blur`: each is the mean of 3 by 3 pixels.
    """

    share_of_devices: Annotated[float, Field(gt=0, le=1)]
    labels: Annotated[LabelFault | None, LEFT_OUT] = None
    images: Annotated[ImageFault | None, LEFT_OUT] = None

    @model_validator(mode="after")
    def _has_a_part(self) -> Self:
        if self.labels is None and self.images is None:
            raise ValueError("labels, images or both are needed")
        return self


class DataSpec(Record):
    """The data set of a run; `domains` and `split` are for `digit_domains` only.

    Attributes:
        name: name of the data set, see `DATASETS`; of a file, by default the file's own.
        file: a file of the folder of data, by its path: `.npz`, a table such as `.csv`, or a folder of images by class.
        target: the column of a table that models are to predict.
        group: the column of a table that says to which group a row belongs, such as a hospital.
        columns: how columns of a table are read, by their names; others are what most of their cells are.
        missing: what becomes of missing cells of a table; None means that they are refused.
        csv: how a table's file is written, where that cannot be told from it.
        kind: what the targets of a file or of a plug-in's data are: `classes`, `labels`, `numbers` or `tokens`; None
            means what they look like.
        standardise_target: whether targets that are numbers are standardised; None means that they are if they are far
            from the size that the usual learning rates suit.
        layout: which axis of samples in arrays holds their channels; models get them first. None means that samples are
            as models get them, but for images of bytes, which have channels last.
        n_train: number of training samples, drawn with a seed and stratified by class; None means all.
        n_test: number of test samples, drawn likewise; None means all.
        domains: the digit data sets that are combined, in this order; None means all five.
        size: side to which their images, or those of a folder, are resized, in pixels; None means 28, or their own.
        value_range: the values of images of more than eight bits that are black and white; None means all 16 bits, if
            they use more than half of them.
        background: on which transparent images of a folder are laid; None means `white`.
        split: `whole`: each set's training and test images are pooled and split into 80 % training and 20 % test
            images; `official`: 80 % of its training images, and its own test images. None means `whole`.
        params: parameters of a plug-in's data set.
        faults: training samples of some devices that are wrong; None means that there are none.
    """

    name: str = Field(default="digits", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    file: Annotated[Annotated[str, Field(min_length=1, max_length=500)] | None, LEFT_OUT] = None
    target: Annotated[Column | None, LEFT_OUT] = None
    group: Annotated[Column | None, LEFT_OUT] = None
    columns: Annotated[Annotated[dict[Column, ColumnUse], Field(max_length=10_000)] | None, LEFT_OUT] = None
    missing: Annotated[Missing | None, LEFT_OUT] = None
    csv: Annotated[CsvSpec | None, LEFT_OUT] = None
    kind: Annotated[TargetKind | None, LEFT_OUT] = None
    standardise_target: Annotated[bool | None, LEFT_OUT] = None
    layout: Annotated[Layout | None, LEFT_OUT] = None
    n_train: int | None = Field(default=None, ge=1, le=10**9)
    n_test: int | None = Field(default=None, ge=1, le=10**9)
    domains: Annotated[Names, Field(min_length=1)] | None = None
    size: int | None = Field(default=None, ge=8, le=256)
    value_range: Annotated[tuple[Value, Value] | None, LEFT_OUT] = None
    background: Annotated[Literal["white", "black"] | None, LEFT_OUT] = None
    split: Literal["whole", "official"] | None = None
    params: PluginParams = Field(default_factory=dict)
    faults: Annotated[FaultsSpec | None, LEFT_OUT] = None

    @model_validator(mode="before")
    @classmethod
    def _named_by_file(cls, raw: Any) -> Any:
        """A name with a dot or a slash is a file; a file without a name of its own is named by its path."""
        if not isinstance(raw, Mapping):
            return raw
        found, name = dict(raw), raw.get("name")
        if isinstance(name, str) and "file" not in raw and set(name) & set("./"):
            found["file"] = found.pop("name")
        if isinstance(found.get("file"), str) and found.get("name", "digits") in TAKEN:
            plain = re.sub(r"[^a-z0-9]+", "_", PurePosixPath(found["file"]).stem.lower()).strip("_")
            found["name"] = plain[:64] if plain[:1].isalpha() and plain not in TAKEN else f"data_{plain}"[:64]
        return found

    @model_validator(mode="after")
    def _fits(self) -> Self:
        table = self.file is not None and is_table(self.file)
        for field in ("target", "group", "columns", "missing", "csv"):
            if getattr(self, field) is not None and not table:
                which = "goes with file, such as a .csv" if self.file is None else f"{self.file} is read as none"
                raise ValueError(f"{field} is for a table ({', '.join(TABLES)}, also with .gz): {which}")
        if table and self.target is None:
            raise ValueError("target: the column of the table that models are to predict is needed")
        if self.kind is not None and self.file is None and self.name in TAKEN:
            raise ValueError(f"kind goes with files and plug-ins: {self.name} says itself what its targets are")
        if self.standardise_target is not None and self.file is None and self.name in TAKEN:
            raise ValueError(f"standardise_target goes with files and plug-ins: the targets of {self.name} are fixed")
        if self.layout is not None and (self.name in TAKEN if self.file is None else not self.file.endswith(".npz")):
            raise ValueError("layout is for arrays: it goes with file, an .npz, or with a plug-in's data")
        folder = self.file is not None and not table and not self.file.endswith(".npz")
        for field in ("value_range", "background"):
            if getattr(self, field) is not None and not folder:
                raise ValueError(f"{field} is for images: it goes with file, a folder of them")
        if self.value_range is not None and self.value_range[0] >= self.value_range[1]:
            raise ValueError("value_range: the value of black is to be below that of white")
        if self.file is not None:
            check_relative(self.file)
        return self


def check_relative(file: str) -> None:
    """Checks that a path stays within the folder of data.

    Raises:
        ValueError: it does not, or is none.
    """
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file:
        raise ValueError("file: a path within the folder of data is needed, relative and without `..`")


class ModelSpec(Record):
    """The model of a run.

    Attributes:
        name: name of the model, see `MODELS` and `OF_OTHER_DATA`; `torchvision.<name>` is a model of torchvision.
        projection: number of outputs of a projection head before the last layer; None means no projection head.
        width: share of the units of the hidden layers, for the models in `OF_ANY_WIDTH`.
        params: parameters of a plug-in's model.
    """

    name: str = Field(default="mlp", pattern=r"^(torchvision\.)?[a-z][a-z0-9_]{0,63}$")
    projection: int | None = Field(default=None, ge=1, le=65_536)
    width: float = Field(default=1.0, gt=0, le=4)
    params: PluginParams = Field(default_factory=dict)

    def __str__(self) -> str:
        named = self.name if self.width == 1 else f"{self.name}, width {self.width:g}"
        return named if self.projection is None else f"{named}, projection {self.projection}"


class AugmentSpec(Record):
    """How training images are augmented.

    Attributes:
        name: `randaugment`: randomly drawn operations; `crop_flip`: a random crop of the image with a black border of
            an eighth of its side (4 of 32 pixels), mirrored with probability 1/2.
        n_ops: number of operations of `randaugment` applied to an image, one after another.
        magnitude: strength of these operations, 0 to 10.
        when: `load`: an image is augmented anew whenever it is trained on; `once`: each image is augmented once, and
            the augmented images replace the client's images in all rounds; `expand`: in each task an augmented copy
            of each image is added to the images, so that an epoch has twice as many samples.
    """

    name: Literal["randaugment", "crop_flip"] = "randaugment"
    n_ops: Annotated[int, Field(ge=1, le=10)] = 2
    magnitude: Annotated[int, Field(ge=0, le=STRONGEST)] = STRONGEST
    when: Literal["load", "once", "expand"] = "load"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for field in ("n_ops", "magnitude"):
            if self.name != "randaugment" and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field} goes with randaugment: {self.name} has no operations to choose from")
        return self

    @property
    def versions(self) -> int:
        """Number of times that an image comes in an epoch: as it is, augmented, or both."""
        return 2 if self.when == "expand" else 1
