"""The mutants of a session: drawn by hash, so equal code gives equal ones, and alternating between packages."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutations import Change, Place, changed, places
from tests.mutants.packages import PACKAGES, Package, code_of


class Mutant(NamedTuple):
    """One changed file."""

    key: str
    """Names the change by its function and its line's text, so it stays the same if only other code changes."""
    package: Package
    file: str
    code: str
    """The digest of the unchanged file."""
    place: Place
    change: Change


def sample(root: Path, n: int, packages: tuple[Package, ...] = PACKAGES) -> list[Mutant]:
    """About `n` mutants, the same number of each package as far as it has as many lines."""
    drawn = {package.name: _drawn(package, root) for package in packages}
    found: dict[str, list[Mutant]] = {package.name: [] for package in packages}
    while drawn and sum(map(len, found.values())) < n:
        for name in list(drawn):
            mutant = next(drawn[name], None)
            if mutant is None:
                del drawn[name]
            elif sum(map(len, found.values())) < n:
                found[name].append(mutant)
    rounds = zip_longest(*found.values())
    return [mutant for row in rounds for mutant in row if mutant is not None]


def _drawn(package: Package, root: Path) -> Iterator[Mutant]:
    """The package's mutants in the order of their hashes, one of each line."""
    texts = {file: (root / file).read_text("utf-8") for file in code_of(package, root)}
    keyed = {key: (file, place) for file, text in texts.items() for key, place in _keyed(file, text)}
    lines = set()
    for key in sorted(keyed):
        file, place = keyed[key]
        if (file, place.line) in lines or (change := changed(texts[file], place)) is None:
            continue
        lines.add((file, place.line))
        yield Mutant(key, package, file, hashlib.sha256(texts[file].encode()).hexdigest()[:16], place, change)


def _keyed(file: str, text: str) -> Iterator[tuple[str, Place]]:
    """Every place with its hash; equal changes of equal lines of a function are counted."""
    lines, seen = text.split("\n"), Counter[str]()
    for place in places(text):
        named = f"{file}:{place.function}:{place.operator}:{lines[place.line - 1].strip()}"
        seen[named] += 1
        yield hashlib.sha256(f"{named}:{seen[named]}".encode()).hexdigest()[:16], place
