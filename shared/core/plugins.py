"""Plug-ins: packages of a user, whose values are found by name beside the built-in ones.

`STRATA_PLUGINS` lists packages (comma-separated, importable); installed ones may declare themselves by an entry point
of the group `strata.plugins`, whose value is the package. Every module of a package is imported, but those whose name
begins with an underscore. A value at the top level of a module belongs to a kind, such as algorithms or models, by its
class, and has its name as its attribute `name`. Neither the order of packages nor that of modules decides anything.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, Protocol, cast

from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypeVar

from shared.core.errors import BadInput, UnknownName
from shared.core.user_code import user_code
from shared.core.validation import explain

VARIABLE = "STRATA_PLUGINS"
GROUP = "strata.plugins"
MAX_PACKAGES = 50
MAX_PACKAGE_BYTES = 64 * 2**20
NAME = r"^[a-z][a-z0-9_]{0,63}$"
PluginParams = Annotated[dict[str, Any], Field(max_length=1000, exclude_if=lambda value: not value)]
"""The parameters of a plug-in's value in a spec, which its own model checks; not written where there are none."""


class Named(Protocol):
    """A value that is found by its name."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Value:
    """What the values of most kinds have in common.

    Attributes:
        name: by which specs name the value: lower-case letters, digits and underscores.
        description: one line for listings.
        params: the model of its parameters in a spec; None means that it has none.
    """

    name: str
    description: str = ""
    params: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME, self.name):
            raise ValueError(f"{self.name!r:.80} is no name: it must match {NAME}")

    def parse(self, raw: Mapping[str, Any], field: str) -> BaseModel | None:
        """The parameters of a spec, checked; None where the value has none.

        Raises:
            BadInput: naming the parameter, below this field of the spec.
        """
        if self.params is None:
            if raw:
                raise BadInput(f"{field}: {self.name} has no parameters", field=field)
            return None
        with user_code(f"the check of the parameters of {self.name}", field):
            try:
                return self.params.model_validate(dict(raw))
            except ValidationError as error:
                raise explain(error, self.params, field.split(".")) from None


V = TypeVar("V", bound=Named)
W = TypeVar("W", bound=Named, default=V)


@dataclass(frozen=True)
class Plugged(Generic[V]):
    """A value of a plug-in, with its package and the module that holds it."""

    value: V
    package: str
    module: ModuleType


@dataclass(frozen=True)
class Kind(Generic[V, W]):
    """The values of one kind by name: the built-in ones, and those of plug-ins.

    V is the class of a plug-in's values. W is that of all values: V too, or `Value` where built-in ones are made
    otherwise and only described.

    Attributes:
        of: the class of the values.
        word: what a value is called in messages, such as `model`.
        field: the field of a spec that names one.
        built_in: returns the names of the built-in values.
        load: returns the built-in value of a name.
    """

    of: type[V]
    word: str
    field: str
    built_in: Callable[[], Mapping[str, Any]]
    load: Callable[[str], W]

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self.built_in(), *self.plugged()})

    def get(self, name: str, field: str | None = None) -> W:
        """The value of that name.

        Raises:
            UnknownName: there is none; the message lists the known names.
            BadInput: a name is taken twice, or a package of `STRATA_PLUGINS` is missing.
        """
        plugged = self.plugged()
        if name in plugged:
            return cast("W", plugged[name].value)
        if name not in self.built_in():
            more = "" if packages() else f"; {VARIABLE} names packages that bring more"
            raise UnknownName(self.word, name, self.names(), field=field or self.field, more=more)
        return self.load(name)

    def all(self) -> dict[str, W]:
        """All values by name, sorted."""
        return {name: self.get(name) for name in self.names()}

    def package_of(self, name: str) -> str | None:
        """The package that brings the value of that name; None for a built-in one."""
        found = self.plugged().get(name)
        return None if found is None else found.package

    def plugged(self) -> dict[str, Plugged[V]]:
        """The values of plug-ins by name. A built-in value that a plug-in imports is none of its own.

        Raises:
            BadInput: a name is taken twice; the message has both places.
        """
        found = values_of(self.of)
        for name in sorted(found.keys() & self.built_in().keys()):
            given = found.pop(name)
            if given.value is not self.load(name):
                where = given.module.__name__
                raise BadInput(f"the {self.word} {name} of {where} has the name of a built-in one", field=VARIABLE)
        return found


def packages() -> tuple[str, ...]:
    """The names of the plug-in packages, sorted.

    Raises:
        BadInput: there are more than `MAX_PACKAGES`.
    """
    named = {part.strip() for part in os.environ.get(VARIABLE, "").split(",") if part.strip()}
    found = tuple(sorted(named | {entry.value.partition(":")[0] for entry in _entry_points()}))
    if len(found) > MAX_PACKAGES:
        raise BadInput(f"{VARIABLE}: {len(found)} packages, at most {MAX_PACKAGES} are allowed", field=VARIABLE)
    return found


@cache
def _entry_points() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=GROUP))


def values_of(kind: type[V]) -> dict[str, Plugged[V]]:
    """The values of a class in all plug-ins, by name.

    Raises:
        BadInput: two have the same name, a package is missing, or its import fails.
    """
    return dict(_values_of(kind, packages()))


@cache
def _values_of(kind: type[V], names: tuple[str, ...]) -> dict[str, Plugged[V]]:
    found: dict[str, Plugged[V]] = {}
    for package in names:
        for module in modules_of(package):
            for value in vars(module).values():
                if not isinstance(value, kind):
                    continue
                known = found.setdefault(value.name, Plugged(value, package, module))
                if known.value is not value:
                    places = f"{known.module.__name__} and {module.__name__}"
                    raise BadInput(f"two values have the name {value.name!r}: {places}", field=VARIABLE)
    return dict(sorted(found.items()))


@cache
def modules_of(package: str) -> tuple[ModuleType, ...]:
    """A package and all its public modules, by name; imports them.

    Raises:
        BadInput: there is no such package, or its import fails.
    """
    root = _import_package(package)
    found = {root.__name__: root}
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not any(part.startswith("_") for part in info.name.removeprefix(f"{package}.").split(".")):
            found[info.name] = _imported(info.name)
    return tuple(found[name] for name in sorted(found))


def _imported(name: str) -> ModuleType:
    with user_code(f"the import of {name}", VARIABLE):
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise BadInput(f"{VARIABLE}: there is no package {name!r} on the Python path", field=VARIABLE) from None
        torch = sys.modules.get("torch")
        if torch is not None and torch.get_default_dtype() != torch.float32:
            sys.modules.pop(name)  # so that the next import says it, too
            what = f"the import of {name} sets torch's default dtype to {str(torch.get_default_dtype())[6:]}"
            raise BadInput(f"{VARIABLE}: {what}, for all runs: name dtypes where tensors are made", field=VARIABLE)
    return found


def _import_package(package: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:  # last: a package in the working directory hides no other
        sys.path.append(here)
    if package.startswith(".") or not all(part.isidentifier() for part in package.split(".")):
        raise BadInput(f"{VARIABLE}: {package!r} is not a package (a folder of modules)", field=VARIABLE)
    found = _imported(package)
    if not hasattr(found, "__path__"):
        raise BadInput(f"{VARIABLE}: {package!r} is not a package (a folder of modules)", field=VARIABLE)
    return found


def digests() -> dict[str, str]:
    """The digest of each plug-in package by its name, as its files were when the process first asked."""
    return {package: digest_of(package) for package in packages()}


@cache
def digest_of(package: str) -> str:
    """The sha256 over the relative paths and contents of a package's files; compiled files are left out.

    So are paths that begin with `..`: where Kubernetes mounts a ConfigMap, it keeps the files in such a folder, whose
    name differs from pod to pod, and links to them.

    Raises:
        BadInput: there is no such package, or it has more than `MAX_PACKAGE_BYTES`.
    """
    sha, n_bytes = hashlib.sha256(), 0
    for path, file in sorted(_files(_import_package(package))):
        content = file.read_bytes()
        n_bytes += len(content)
        if n_bytes > MAX_PACKAGE_BYTES:
            raise BadInput(f"plug-in {package} has more than {MAX_PACKAGE_BYTES} bytes", field=VARIABLE)
        sha.update(f"{path}|{len(content)}|".encode() + content)
    return sha.hexdigest()


def _files(package: ModuleType) -> Iterator[tuple[str, Path]]:
    for folder in map(Path, package.__path__):
        for file in folder.rglob("*"):
            path = file.relative_to(folder)
            if file.is_file() and "__pycache__" not in path.parts and not path.parts[0].startswith(".."):
                yield path.as_posix(), file
