"""Algorithms are found by the name of their module, with their pictures; errors of a package are named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.core.errors import BadInput
from shared.federation.registry import ALGORITHMS, all_algorithms, load_algorithm, pictures_of_algorithm

ALGORITHM = 'from strata.hooks import Algorithm\nALGORITHM = Algorithm(name="{name}", paper="none")\n'


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes a module of a user's package."""
    (package := tmp_path / f"of_{tmp_path.name}").mkdir()  # names of modules are kept by package
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STRATA_PLUGINS", package.name)

    def write(name: str, text: str) -> None:
        (package / f"{name}.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        monkeypatch.delitem(sys.modules, name)


def test_algorithms_with_their_own_pictures_are_known() -> None:
    found = {name for name in all_algorithms() if pictures_of_algorithm(name) is not None}
    assert found == {"bofl", "dtpfl", "es_afl", "lafl_cpn"}


def test_pictures_that_cannot_be_called_are_named(written: Callable[[str, str], None]) -> None:
    written("no_function", ALGORITHM.format(name="no_function") + 'PICTURES = ["accuracy"]\n')
    with pytest.raises(BadInput, match=r"\.no_function\.PICTURES cannot be called"):
        pictures_of_algorithm("no_function")


def test_a_users_algorithm_is_found_by_its_own_name(written: Callable[[str, str], None]) -> None:
    written("some_module", ALGORITHM.format(name="another_name"))
    assert load_algorithm("another_name").name == "another_name"
    assert ALGORITHMS.package_of("another_name") is not None


def test_a_users_module_has_pictures(written: Callable[[str, str], None]) -> None:
    written("drawn", ALGORITHM.format(name="drawn") + "def PICTURES(history):\n    return ()\n")
    pictures = pictures_of_algorithm("drawn")
    assert pictures is not None
    assert pictures(None) == ()
