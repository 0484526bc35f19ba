"""A setting: one experiment of a paper's page, run with several seeds."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from shared.spec.run import RunSpec
from strata.spec_files import read_spec

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
Size = Literal["small", "paper"]


@dataclass(frozen=True)
class Setting:
    """A spec with some changes, and the seeds with which it runs; methods that are compared have the same seeds.

    Attributes:
        key: its name in files and tables.
        spec: name of a file in `experiments/`, without suffix.
        changes: as on the command line, `key=value`.
        size: `paper` as large as in the paper, `small` on part of the data or for fewer rounds.
        what: the method in words, for tables.
        where: the data and their split in words, where a page has several.
    """

    key: str
    spec: str
    changes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    size: Size = "small"
    what: str = ""
    where: str = ""

    @property
    def title(self) -> str:
        """Method and split, for lists of settings with different splits."""
        return "; ".join(filter(None, (self.what or f"`{self.key}`", self.where)))

    @property
    def command(self) -> str:
        """The command that runs it by hand."""
        seeds = f"seed={','.join(map(str, self.seeds))}"
        verb = "sweep" if len(self.seeds) > 1 else "run"
        return shlex.join(["strata", verb, self.spec, *self.changes, seeds])

    def spec_of(self, seed: int, *more: str) -> RunSpec:
        """The spec with one seed, and further changes.

        Raises:
            BadInput: a field is wrong; names it.
        """
        return read_spec(EXPERIMENTS / f"{self.spec}.yaml", [*self.changes, f"seed={seed}", *more])


def fingerprint(spec: RunSpec) -> str:
    """Digest of what a spec says apart from defaults, so that a field that is added later does not change it."""
    said = spec.experiment.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@cache
def fingerprint_of(setting: Setting, seed: int) -> str:
    """The fingerprint of a setting's spec with a seed."""
    return fingerprint(setting.spec_of(seed))
