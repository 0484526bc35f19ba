"""The images of a folder: which files they are, of which part and class, and which files are not read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.training.data.reading import listed
from shared.training.data.sources import DataMalformed

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000")
"""The formats that are read, as Pillow names them. A file's content decides, whatever its name ends with."""


def _endings(names: str) -> frozenset[str]:
    return frozenset(f".{name}" for name in names.split())


PICTURES = _endings("png apng jpg jpeg jpe jfif bmp dib gif tif tiff webp ppm pgm pbm pnm avif jp2 j2k")
"""Endings of files that are to be images: one that is none is refused."""
UNREADABLE = _endings(
    "heic heif jxl dcm dicom nii gz mha mhd nrrd raw cr2 cr3 nef arw dng orf rw2 psd svg eps exr hdr tga ico npy npz "
    "mat zip tar mp4 mov avi mkv webm"
)
"""Endings of files that hold images in formats that are not read: they are refused, so that none is left out."""
ROLES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
"""The part of a data set by the name of its folder, in small letters."""


@dataclass(frozen=True)
class Listing:
    """The images of a folder.

    Attributes:
        parts: by part, `train` and `test`, or "" alone where the folder does not say: its images and their classes, in
            the order of their paths.
        classes: names of the classes, in order.
        notes: what else lies in the folder and is not read, and which classes have no test images: a sentence each.
    """

    parts: dict[str, list[tuple[Path, str]]]
    classes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Unread:
    """What is not read, by its path below the folder."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        if self.files:
            were = "1 file was" if len(self.files) == 1 else f"{len(self.files)} files were"
            yield f"{were} not read, being hidden, no image, or in no class's folder: {listed(self.files)}"
        if self.folders:
            yield f"without images, hence no class: {listed(self.folders)}"


def listed_pictures(folder: Path) -> Listing:
    """Returns the images of a folder by class: `train/<class>/` and `test/<class>/`, or `<class>/` alone.

    Images in folders within a class's folder are of that class.

    Raises:
        DataMalformed: a file that should be an image is none, or of a format that is not read; there are fewer than two
            classes; or folders within classes could be the classes themselves.
    """
    unread = _Unread()
    try:
        parts = {part: _of_part(own, folder, unread) for part, own in _parts(folder, unread).items()}
    except OSError as error:
        raise DataMalformed(f"{folder.name} cannot be read: {error}") from error
    classes = sorted({label for found in parts.values() for _, label in found})
    if len(classes) < 2:
        what = f"{len(classes)} classes{f', {classes[0]}' if classes else ''}"
        raise DataMalformed(
            f"{folder.name} has images of {what}; each class is a folder of its images, below {folder.name} or below "
            "its folders train and test"
        )
    return Listing(parts, tuple(classes), (*unread.notes(), *_untested(parts, classes)))


def opened(path: Path, folder: Path) -> Any:
    """Opens an image; its header alone is read, so that a huge one is not decoded.

    Raises:
        DataMalformed: it is none, or has several frames or pages.
    """
    from PIL import Image

    where = path.relative_to(folder)
    try:
        picture: Any = Image.open(path, formats=FORMATS)
    except Exception as error:  # damaged images raise many types, even `SyntaxError`
        raise DataMalformed(f"{where} is not an image: {error}") from error
    try:
        several = picture.format != "MPO" and getattr(picture, "is_animated", False)  # cameras add a preview to JPEGs
    except Exception as error:  # as above
        picture.close()
        raise DataMalformed(f"{where} is damaged: {error}") from error
    if several:
        n = picture.n_frames
        picture.close()
        raise DataMalformed(f"{where} has {n} frames or pages; save each image as a file of its own")
    return picture


# ---- folders


def _parts(folder: Path, unread: _Unread) -> dict[str, Path]:
    """Returns the folders of the parts; what lies beside them is not read."""
    found: dict[str, Path] = {}
    for own in _folders(folder, Path(), _Unread()):
        role = ROLES.get(own.name.casefold())
        if role in found:
            raise DataMalformed(f"{folder.name}: {found[role].name} and {own.name} are both folders of {role} images")
        if role is not None:
            found[role] = own
    if len(found) < 2:
        return {"": folder}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path not in found.values():
            n = sum(len(files) for _, _, files in os.walk(path))
            unread.files += [f"{path.name}/ ({n} file{'s' * (n != 1)})"] if n else []
        elif not path.is_dir():
            unread.files.append(path.name)
    return {role: found[role] for role in ("train", "test")}


def _folders(folder: Path, below: Path, unread: _Unread) -> list[Path]:
    """Returns the folders in a folder, hidden ones left out; files and hidden folders are counted as not read."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            found.append(path)
        else:
            unread.files.append(str(path.relative_to(below)) if below.parts else path.name)
    return found


def _of_part(part: Path, folder: Path, unread: _Unread) -> list[tuple[Path, str]]:
    """Returns the images of a part and their classes."""
    found = {own: _pictures(own, folder, unread) for own in _folders(part, folder, unread)}
    unread.folders += [str(own.relative_to(folder)) for own, pictures in found.items() if not pictures]
    _check_depth(found, folder)
    return [(path, own.name) for own, pictures in found.items() for path in pictures]


def _check_depth(found: dict[Path, list[Path]], folder: Path) -> None:
    """Refuses folders within classes that recur, as in `hospital 1/ill`, `hospital 2/ill`: they may be the classes."""
    within: dict[str, list[str]] = {}
    for own, pictures in found.items():
        for name in sorted({path.relative_to(own).parts[0] for path in pictures if path.parent != own}):
            within.setdefault(name, []).append(own.name)
    for name, owners in within.items():
        if len(within) > 1 and len(owners) > 1:
            raise DataMalformed(
                f"{folder.name} has images in {owners[0]}/{name} and {owners[1]}/{name}: is the class {name} or "
                f"{owners[0]}? Images are to lie in <class>/, or in train/<class>/ and test/<class>/"
            )


def _pictures(own: Path, folder: Path, unread: _Unread) -> list[Path]:
    """Returns the images in a class's folder and the folders within; others are counted as not read."""
    found = []
    for path in _files(own):
        hidden = any(name.startswith(".") for name in path.relative_to(own).parts)
        if not hidden and _is_picture(path, folder):
            found.append(path)
        else:
            unread.files.append(str(path.relative_to(folder)))
    return found


def _files(own: Path) -> Iterator[Path]:
    """Yields all that is no folder, in order. Links to folders are among them: to follow them may go in circles."""
    for where, folders, files in os.walk(own):
        folders.sort()
        links = [name for name in folders if (Path(where) / name).is_symlink()]
        yield from (Path(where) / name for name in sorted([*files, *links]))


def _is_picture(path: Path, folder: Path) -> bool:
    ending, where = path.suffix.lower(), path.relative_to(folder)
    if ending in UNREADABLE:
        raise DataMalformed(f"{where} is in a format that is not read; save it as PNG or TIFF, or leave it out")
    if not path.is_file():  # reading a pipe would block
        if ending in PICTURES:
            raise DataMalformed(f"{where} is no file, or a link that leads nowhere")
        return False
    try:
        opened(path, folder).close()
    except DataMalformed as error:
        if ending in PICTURES or "is not an image" not in error.detail:
            raise
        return False
    return True


def _untested(parts: dict[str, list[tuple[Path, str]]], classes: Sequence[str]) -> Iterator[str]:
    lacking = sorted(set(classes) - {label for _, label in parts["test"]}) if "test" in parts else []
    if lacking:
        yield f"classes without test images: {listed(lacking)}"
