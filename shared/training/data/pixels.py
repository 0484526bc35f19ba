"""Images as pixels of eight bits a colour, upright and opaque, whatever their files hold.

What a file leaves open is asked: which values of more than eight bits are black and white. What was converted is
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.training.data.picture_files import opened
from shared.training.data.sources import DataMalformed

GREY = frozenset({"L", "1"})
DEEP = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
"""Pillow's modes of one channel of more than eight bits."""
LARGEST, HALF = 65_535, 32_768
"""The largest value of 16 bits. Images that stay below its half may well have fewer bits."""
ORIENTATION, PHOTOMETRIC = 0x0112, 262
"""The tags of EXIF and TIFF that say how an image is turned, and (0) that its least value is white."""


class Head(NamedTuple):
    """What the header of an image says: Pillow's mode, and (width, height) in which it is shown."""

    mode: str
    size: tuple[int, int]


def head_of(path: Path, folder: Path) -> Head:
    """Returns what the header of an image says; its pixels are not decoded."""
    with _reading(path, folder) as picture:
        late = picture.format == "PNG" and "exif" not in picture.info  # looking for it would decode the image
        turned = not late and picture.format != "TIFF" and picture.getexif().get(ORIENTATION, 1) >= 5
        return Head(picture.mode, picture.size[::-1] if turned else picture.size)


def scale_of(deep: Sequence[Path], folder: Path, given: tuple[float, float] | None) -> tuple[float, float]:
    """Returns the values that become black and white in images of more than eight bits.

    Args:
        deep: these images.
        folder: in which they are.
        given: what the spec says; None means all 16 bits, provided that the images use more than half of them.

    Raises:
        DataMalformed: the spec has to say it, or says it where there are no such images.
    """
    if given is not None:
        if not deep:
            raise DataMalformed(f"data.value_range: {folder.name} has no grey images of more than eight bits")
        return given
    spans = [_span(path, folder) for path in deep]
    odd = next((path for path, span in zip(deep, spans, strict=True) if not np.isfinite(span).all()), None)
    if odd is not None:
        raise DataMalformed(f"{odd.relative_to(folder)} holds NaN or infinity")
    low, high = min((span[0] for span in spans), default=0.0), max((span[1] for span in spans), default=float(LARGEST))
    if low < 0 or not HALF <= high <= LARGEST:
        many = f"{len(deep)} images of more than eight bits (such as {deep[0].relative_to(folder)})"
        raise DataMalformed(
            f"{folder.name} has {many}, with values {low:g} to {high:g}: data.value_range has to say which values are "
            "black and white, such as [0, 4095] for 12 bits or [0, 65535] for 16"
        )
    return 0.0, float(LARGEST)


def _span(path: Path, folder: Path) -> tuple[float, float]:
    with _reading(path, folder) as picture:
        values = np.asarray(picture)
        return float(values.min()), float(values.max())


@contextmanager
def _reading(path: Path, folder: Path) -> Iterator[Any]:
    """Opens an image; whatever is wrong with it is named by its file."""
    with opened(path, folder) as picture:
        try:
            yield picture
        except DataMalformed:
            raise
        except Exception as error:  # damaged images raise many types, even `SyntaxError`
            raise DataMalformed(f"{path.relative_to(folder)} is damaged: {error}") from error


@dataclass
class Pixels:
    """Turns images into pixels, and counts what it converts.

    Attributes:
        folder: in which the images are.
        mode: of the result: `L` (grey) or `RGB`.
        side: to which they are resized; None means not at all.
        black, white: the values of images of more than eight bits that become 0 and 255.
        background: on which transparent images are laid.
        counts: number of images, by what was done with them; of `beyond`, pixels.
        brightest: the largest value of images of 16 bits a colour, of which Pillow keeps the upper eight.
    """

    folder: Path
    mode: str
    side: int | None
    black: float
    white: float
    background: str
    counts: Counter[str] = field(default_factory=Counter)
    brightest: int = 0

    def of(self, path: Path) -> npt.NDArray[np.uint8]:
        """Returns the pixels of an image, (height, width) or (height, width, 3).

        Raises:
            DataMalformed: it is damaged, or its values have no meaning that can be told.
        """
        from PIL import Image

        with _reading(path, self.folder) as picture:
            plain = self._plain(self._upright(picture), path)
            if self.side is not None:
                plain = plain.resize((self.side, self.side), Image.Resampling.BILINEAR)
            return np.asarray(plain)

    def notes(self) -> tuple[str, ...]:
        """Returns what was converted, a sentence each.

        Raises:
            DataMalformed: images of 16 bits a colour may have fewer.
        """
        if self.counts["colours"] and self.brightest < LARGEST // 2 >> 8:
            raise DataMalformed(
                f"{self.folder.name} has {self.counts['colours']} images of 16 bits a colour whose values stay below "
                "half of them: save them with eight bits a colour"
            )
        told = {
            "deep": f"of more than eight bits, scaled to eight: {self.black:g} is black, {self.white:g} white",
            "colours": "of 16 bits a colour, of which the upper eight are kept",
            "turned": "turned upright, as their EXIF orientation says",
            "transparent": f"with transparent pixels, laid on {self.background} (data.background)",
        }
        found = [f"{self.counts[key]} images {what}" for key, what in told.items() if self.counts[key]]
        if self.counts["beyond"]:
            found.append(f"{self.counts['beyond']} pixels beyond {self.black:g} to {self.white:g} were clipped")
        return tuple(found)

    def _upright(self, picture: Any) -> Any:
        from PIL import ImageOps

        deep_colours = ";16" in str(picture.tile) and picture.mode not in DEEP
        picture.load()
        if deep_colours:
            self.counts["colours"] += 1
            self.brightest = max(self.brightest, *_largest(picture))
        if picture.getexif().get(ORIENTATION, 1) == 1:
            return picture
        self.counts["turned"] += 1
        return ImageOps.exif_transpose(picture)

    def _plain(self, picture: Any, path: Path) -> Any:
        """Returns an image in the mode of the result, without transparency."""
        from PIL import Image

        if picture.mode in DEEP:
            return Image.fromarray(self._scaled(picture, path)).convert(self.mode)
        if picture.has_transparency_data:
            whole = picture.convert("RGBA")
            if whole.getchannel("A").getextrema()[0] < 255:
                self.counts["transparent"] += 1
                return Image.alpha_composite(Image.new("RGBA", whole.size, self.background), whole).convert(self.mode)
        return picture.convert(self.mode)

    def _scaled(self, picture: Any, path: Path) -> npt.NDArray[np.uint8]:
        values = np.asarray(picture).astype(np.float64)
        where = path.relative_to(self.folder)
        if not np.isfinite(values).all():
            raise DataMalformed(f"{where} holds NaN or infinity")
        if getattr(picture, "tag_v2", {}).get(PHOTOMETRIC) == 0:
            raise DataMalformed(f"{where} has white as its least value (WhiteIsZero); save it with black as the least")
        self.counts["deep"] += 1
        shares: npt.NDArray[np.float64] = (values - self.black) / (self.white - self.black)
        self.counts["beyond"] += int(((shares < 0) | (shares > 1)).sum())
        scaled: npt.NDArray[np.uint8] = np.rint(shares.clip(0, 1) * 255).astype(np.uint8)
        return scaled


def _largest(picture: Any) -> list[int]:
    """Returns the largest value of each colour."""
    return [picture.getchannel(band).getextrema()[1] for band in picture.getbands() if band != "A"]
