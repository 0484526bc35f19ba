"""Settings of every test: one thread, set before torch and the BLAS libraries read the variables."""

import gc
import os
import tempfile

# Until all tests are collected everything that is made stays: to look through it over and over takes a sixth of the
# time of the imports.
gc.disable()
# The number of threads changes the order of additions and therefore the bits of sums. The libraries
# read these variables when they are loaded; processes that tests start inherit them.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
# scikit-learn and torch's counter of operations set these when they are first used; a fork server that was started
# before could then fork no process, and each would be executed.
os.environ |= {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")
# Whether there is a GPU is asked without a driver in this process, with which it could not be forked.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
# Pictures are drawn into files; no test needs a display.
os.environ["MPLBACKEND"] = "Agg"

import asyncio  # noqa: E402 - after the variables above, on purpose
import functools  # noqa: E402
import importlib  # noqa: E402
import inspect  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator  # noqa: E402
from itertools import chain  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from shared.federation.experiment import ExperimentCache  # noqa: E402
from shared.training.torchvision_compat import torchvision  # noqa: E402
from tests.cost.count import count_costs  # noqa: E402
from tests.data_cache import data_of  # noqa: E402
from tests.user_packages import user_package  # noqa: E402, F401 - a fixture
from tests.workers import Workers, by_file  # noqa: E402

if TYPE_CHECKING:
    from tests.federation import Federation

torch.set_num_threads(1)
hypothesis.settings.register_profile("no deadline", deadline=None)  # of wall-clock time, which a busy machine misses
hypothesis.settings.load_profile("no deadline")
INTEGRATION = {
    "tests.federation",
    "tests.shared.algorithms.layouts",
    "tests.security.sockets",
    "tests.soak.proxy",
    "tests.strata.fake_cloud",
    "strata.launcher.fork_server",
    "strata.launcher.process",
    "strata.launcher.topology",
}
"""Modules whose functions and classes run the three tiers in this process, or servers and other processes."""

_MODULES = "|".join(map(re.escape, sorted(INTEGRATION)))
INTEGRATES = re.compile(rf"^from (?:{_MODULES}) import |^pytestmark = pytest\.mark\.integration", re.MULTILINE)
"""How a file begins of which every test is one of integration."""


def _interrupt(*_: object) -> None:
    """Ends the session, as the default handler does.

    Where that one is in place, asyncio sets another for each test, and Python writes the result of the test's coroutine
    out as text to look the handler up: of models that takes longer than the test.
    """
    raise KeyboardInterrupt


if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN):  # ignored: a shell's background
    signal.signal(signal.SIGINT, _interrupt)

NAMED = {"e2e", "smoke", "swarm"}
"""Markers that stand by name in each file whose tests have them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of processes among which files are divided."""
    parser.addoption("--workers", type=int, default=0, metavar="N", help="divide the files among N forked processes")


def pytest_configure(config: pytest.Config) -> None:
    """Divide the tests among processes, and count what files cost, where this is asked for."""
    if config.option.workers:
        config.pluginmanager.register(Workers(config.option.workers), "workers")
    count_costs(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which `-m` wants no test: to import them takes longer than all tests that are left."""
    wanted = config.option.markexpr
    if "not helm" in wanted and collection_path.parent.name == "helm":
        return True
    if collection_path.suffix != ".py" or not (wanted in NAMED or "not integration" in wanted):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return (wanted not in text if wanted in NAMED else bool(INTEGRATES.search(text))) or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Import what all workers would, then let the garbage collector look now and then at what is made from here on."""
    if session.config.option.workers:
        torchvision()
        importlib.import_module("matplotlib.backends.backend_agg")
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a run makes as much that stays; Python's own threshold takes 8% of its time
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_before_workers(config: pytest.Config, items: list[pytest.Item], count: int) -> None:
    """Start the fork servers of the workers, where there are tests with real processes."""
    if any(item.get_closest_marker("e2e") for item in items):
        from tests import fork_server

        fork_server.prepare(count)
        config.pluginmanager.register(fork_server, "fork servers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses the tiers and what is slow, order the files for several processes, and set deadlines.

    Each coroutine has its own deadline before pytest-timeout's, whose exception can end up in a callback of the event
    loop, which logs it and continues: a test that waits for an event that never comes would then wait for ever.
    """
    seen: Counter[str] = Counter()
    for item in items:
        if isinstance(item, pytest.Function) and _integrates(item):
            item.add_marker(pytest.mark.integration)
        if matrix := item.get_closest_marker("matrix"):
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > 1:
                within = matrix.args and seen[test] <= matrix.args[0]
                item.add_marker(pytest.mark.whole if within else pytest.mark.slow)
    given = config.getoption("timeout")
    usual = float(config.getini("timeout") if given is None else given)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            mark = item.get_closest_marker("timeout")
            limit_s = float(mark.args[0]) if mark else usual
            if limit_s:  # 0 means no limit, for a debugger
                item.obj = _limited(item.obj, 0.95 * limit_s)
    if config.option.workers:
        _spread(items)


def _spread(items: list[pytest.Item]) -> None:
    """Order the files for several processes, which take them in this order.

    Files with real processes, which often wait, lie evenly among those that run the tiers in the test's process, which
    compute. Short files come last, so that all processes end at about the same time.
    """
    files = by_file(items)
    marks = [{mark.name for item in of_file for mark in item.iter_markers()} for of_file in files]
    waiting = [number for number, names in enumerate(marks) if "e2e" in names]
    computing = [number for number, names in enumerate(marks) if "e2e" not in names and names & {"integration", "slow"}]
    places = [((place + 0.5) / len(kind), number) for kind in (waiting, computing) for place, number in enumerate(kind)]
    first = [number for _, number in sorted(places)]
    items[:] = chain.from_iterable(files[number] for number in dict.fromkeys([*first, *range(len(files))]))


def _integrates(item: pytest.Function) -> bool:
    """Whether the test's module uses one of these modules, directly or through a helper of the tests."""
    names = {getattr(value, "__module__", None) for value in vars(item.module).values()}
    return bool(names & INTEGRATION)


def _limited(test: Callable[..., Coroutine[Any, Any, None]], limit_s: float) -> Callable[..., Any]:
    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(limit_s):
            await test(*args, **kwargs)

    return limited


@pytest.fixture(scope="session", autouse=True)
def mapped_data() -> Iterator[None]:
    """The tiers of all tests of this process share the arrays of data sets that need no file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperimentCache, "data_of", data_of)
        yield


@pytest.fixture
def counter_algorithm(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an algorithm whose devices keep a state: the number of their visits."""
    monkeypatch.setenv("STRATA_PLUGINS", "tests.probes")
    return "probe_counter"


@pytest.fixture
async def fed(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator["Federation"]:
    """A federation of the test; a marker `layout` has its edges, agents and settings.

    What must be in place when its tiers start stands before it among the test's arguments.
    """
    from tests.federation import Federation

    layout = request.node.get_closest_marker("layout")
    async with Federation(tmp_path / "f", **(layout.kwargs if layout else {})) as fed:
        yield fed
