"""Plug-ins: values of a user's packages are found by name, by kind and in any order."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.core.errors import BadInput, UnknownName
from shared.core.plugins import Kind, Value, digest_of, digests, packages, values_of
from shared.core.records import Record


@dataclass(frozen=True, kw_only=True)
class Colour(Value):
    """A kind of the tests."""

    red: int = 0


RED = Colour(name="red", red=255)
COLOURS: Kind[Colour] = Kind(Colour, "colour", "colour.name", lambda: {"red": RED}, lambda name: RED)
IMPORTS = "from tests.shared.core.test_plugins import Colour\n"


Write = Callable[[str, str], str]


class Few(Record):
    """Parameters."""

    n: int = 1


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module of one of the test's packages, which STRATA_PLUGINS then names; returns the package's name."""
    made: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)

    def write(module: str, text: str) -> str:
        package, _, name = module.partition(".")
        package = f"{package}_of_{tmp_path.name}"  # names of modules are kept by package
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / f"{name or '__init__'}.py").write_text(text, encoding="utf-8")
        made.append(package)
        monkeypatch.setenv("STRATA_PLUGINS", ",".join(dict.fromkeys(reversed(made))))
        importlib.invalidate_caches()
        return package

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in made]:
        monkeypatch.delitem(sys.modules, name)


def test_values_are_found_in_all_public_modules_by_their_kind(write: Write) -> None:
    write("a.shades", IMPORTS + 'DARK = Colour(name="dark", red=1)\nNUMBER = 3\n')
    write("a._hidden", IMPORTS + 'HIDDEN = Colour(name="hidden")\n')
    package = write("b", IMPORTS + 'LIGHT = Colour(name="light", red=9)\nsame = LIGHT\n')
    assert {name: found.value.red for name, found in values_of(Colour).items()} == {"dark": 1, "light": 9}
    assert COLOURS.names() == ["dark", "light", "red"]
    assert (COLOURS.get("light").red, COLOURS.get("red").red) == (9, 255)
    assert (COLOURS.package_of("light"), COLOURS.package_of("red")) == (package, None)


def test_a_package_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"here_in_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(IMPORTS + 'HERE = Colour(name="here")\n', encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRATA_PLUGINS", name)
    assert COLOURS.package_of("here") == name
    assert sys.path[-1] == str(tmp_path)
    monkeypatch.delitem(sys.modules, name)


def test_a_built_in_value_that_a_plug_in_imports_is_not_its_own(write: Write) -> None:
    write("a", "from tests.shared.core.test_plugins import RED\n")
    assert (COLOURS.names(), COLOURS.package_of("red")) == (["red"], None)


def test_the_order_of_packages_decides_nothing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [write("c", IMPORTS + 'C = Colour(name="c")\n'), write("a", IMPORTS + 'A = Colour(name="a")\n')]
    orders = []
    for names in (found, found[::-1]):
        monkeypatch.setenv("STRATA_PLUGINS", ", ".join(names))
        orders.append((packages(), list(values_of(Colour)), digests()))
    assert orders[0] == orders[1]


BLUE = IMPORTS + 'A = Colour(name="blue")\n'


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"a": BLUE}, r"colour\.name: unknown colour 'green'; known: blue, red"),
        ({"a": BLUE, "b.inner": BLUE}, r"'blue': a_of_\S+ and b_of_\S+\.inner"),
        ({"a": IMPORTS + 'A = Colour(name="red", red=2)\n'}, "the colour red of a_of_"),
        ({"a.broken": "import no_such_module_at_all\n"}, r"ModuleNotFoundError: .*no_such_module_at_all"),
    ],
    ids=["unknown", "twice", "built in", "broken"],
)
def test_a_name_that_leads_to_no_value_or_two_is_refused(write: Write, modules: dict[str, str], message: str) -> None:
    for module, text in modules.items():
        write(module, text)
    with pytest.raises(UnknownName if "unknown" in message else BadInput, match=message):
        COLOURS.get("green")


def test_the_digest_follows_the_files_and_nothing_else(write: Write, tmp_path: Path) -> None:
    package = write("a", "X = 1\n")
    first = digest_of(package)
    (tmp_path / package / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / package / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert digest_of.__wrapped__(package) == first
    (tmp_path / package / "data.csv").write_text("1", encoding="utf-8")
    second = digest_of.__wrapped__(package)
    (tmp_path / package / "data.csv").rename(tmp_path / package / "other.csv")
    assert len({first, second, digest_of.__wrapped__(package)}) == 3


def test_a_package_mounted_from_a_config_map_has_the_digest_of_its_files(write: Write, tmp_path: Path) -> None:
    """Kubernetes keeps them in a folder named by the time, and links to them; the name differs from pod to pod."""
    package = write("a", "X = 1\n")
    first, folder = digest_of(package), tmp_path / package
    kept = folder / "..2026_11_30_15_00_00.1"
    kept.mkdir()
    (folder / "..data").symlink_to(kept.name)
    for file in list(folder.glob("*.py")):
        file.rename(kept / file.name)
        file.symlink_to(Path("..data") / file.name)
    assert digest_of.__wrapped__(package) == first


@pytest.mark.parametrize("name", ["", "Big", "with space", "1st", "a" * 65])
def test_names_are_those_of_a_spec(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        Colour(name=name)


def test_parameters_are_checked_by_their_model_and_named_with_their_place() -> None:
    value = Colour(name="some", params=Few)
    assert value.parse({"n": 3}, "colour.params") == Few(n=3)
    assert Colour(name="none").parse({}, "colour.params") is None
    with pytest.raises(BadInput, match=r"colour\.params\.n: ") as caught:
        value.parse({"n": "many"}, "colour.params")
    assert caught.value.field == "colour.params.n"
    with pytest.raises(BadInput, match="colour: none has no parameters"):
        Colour(name="none").parse({"n": 1}, "colour")
