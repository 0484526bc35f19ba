"""Which packages of plug-ins a spec uses: those of every kind of value that it can name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.core.plugins import digest_of
from shared.federation.plugin_checks import packages_of
from shared.federation.spec_parser import parse_spec

HEAD = "from strata.plugins import *\n"
VALUES = {
    "algorithm": "A = Algorithm(name='own', paper='none', objective=lambda ctx: None)",
    "data": "D = DataSource(name='own', arrays=dict)",
    "loss": "L = Loss(name='own', kinds=frozenset({'classes'}), each=lambda params, outputs, y: outputs[:, 0])",
    "metric": "M = Metric(name='own', kinds=frozenset({'classes'}), state=len, value=len, largest=lambda p, n: (1,))",
    "model": "F = ModelFactory(name='own', build=lambda sample, target: None)",
    "partition": "P = Partitioner(name='own', assign=lambda task, params: [])",
    "policy": "S = SelectionPolicy(name='own', choose=lambda ctx, seats, view: [])",
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package for each kind, named by the kind behind a word of the test's own; returns that word."""
    word = f"of_{tmp_path.name}"
    for kind, text in VALUES.items():
        (tmp_path / f"{word}_{kind}").mkdir()
        (tmp_path / f"{word}_{kind}" / "__init__.py").write_text(f"{HEAD}{text}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STRATA_PLUGINS", ",".join(f"{word}_{kind}" for kind in VALUES))
    importlib.invalidate_caches()
    yield word
    for kind in VALUES:
        sys.modules.pop(f"{word}_{kind}", None)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({"algorithm": "own"}, "algorithm"),
        ({"algorithm": {"name": "fedavg", "local": "own"}}, "algorithm"),
        ({"data": "own"}, "data"),
        ({"loss": "own"}, "loss"),
        ({"metrics": ["accuracy", "own"]}, "metric"),
        ({"model": "own"}, "model"),
        ({"partition": "own"}, "partition"),
        ({"select": "own"}, "policy"),
        ({}, None),
    ],
)
def test_a_spec_uses_the_packages_of_what_it_names(packages: str, spec: dict[str, Any], kind: str | None) -> None:
    used = [] if kind is None else [f"{packages}_{kind}"]
    assert packages_of(parse_spec(spec)) == {package: digest_of(package) for package in used}
