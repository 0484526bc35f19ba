"""StrataFL from Python: runs as objects. `strata.hooks` is for algorithms of one's own; `strata` is a command too.

    import strata

    with strata.local(edges=2, devices=20) as cloud:
        run = cloud.run(data="digits", num_rounds=5, lr=0.1).wait()
        print(run.accuracy)

- `local` starts a cloud, edges and devices on this machine, `connect` connects to a cloud that runs: a `Cloud` each.
- `Cloud.run` starts a `Run`; `load_run` reads one that was saved. `Run.rounds` gives a `Round` each.
- `sweep` runs combinations of values and returns a `Sweep`; `compare` puts runs side by side.
- `Spec` is a spec that is checked as it is written.
- `StrataError` is what everything here raises, with `detail` and, of wrong input, `field`; its kinds are in `errors`.

Everything is loaded when it is first used: importing this package is cheap, and `strata.hooks` loads no client.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.core import errors
    from shared.core.errors import StrataError
    from shared.run_records.rounds import RoundInfo as Round
    from strata.objects.cloud import Cloud, connect
    from strata.objects.comparison import Comparison, compare
    from strata.objects.local import local
    from strata.objects.plot import Plot
    from strata.objects.run import Run, RunFailed, load_run
    from strata.objects.spec import Spec
    from strata.objects.sweep import Sweep, sweep

__all__ = [
    "Cloud",
    "Comparison",
    "Plot",
    "Round",
    "Run",
    "RunFailed",
    "Spec",
    "StrataError",
    "Sweep",
    "compare",
    "connect",
    "errors",
    "load_run",
    "local",
    "sweep",
]

_PLACES = {
    "Cloud": "strata.objects.cloud:Cloud",
    "Comparison": "strata.objects.comparison:Comparison",
    "Plot": "strata.objects.plot:Plot",
    "Round": "shared.run_records.rounds:RoundInfo",
    "Run": "strata.objects.run:Run",
    "RunFailed": "strata.objects.run:RunFailed",
    "Spec": "strata.objects.spec:Spec",
    "StrataError": "shared.core.errors:StrataError",
    "Sweep": "strata.objects.sweep:Sweep",
    "compare": "strata.objects.comparison:compare",
    "connect": "strata.objects.cloud:connect",
    "errors": "shared.core.errors:",
    "load_run": "strata.objects.run:load_run",
    "local": "strata.objects.local:local",
    "sweep": "strata.objects.sweep:sweep",
}


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _import_shared() -> None:
    """Import our package `shared`, also where a folder of the user's has one of that name, whose modules stay there.

    Raises:
        ImportError: theirs has been imported already.
    """
    sys.path.insert(0, _ROOT)
    try:
        import shared
    finally:
        sys.path.remove(_ROOT)
    if _ROOT not in {os.path.dirname(os.path.abspath(folder)) for folder in shared.__path__}:
        where = ", ".join(shared.__path__)
        raise ImportError(f"the package `shared` of {where} has the name of one of StrataFL's: import strata before it")
    theirs = PathFinder.find_spec("shared")
    for folder in (theirs and theirs.submodule_search_locations) or ():
        if os.path.abspath(folder) not in map(os.path.abspath, shared.__path__):
            shared.__path__.append(folder)


_import_shared()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'strata' has no attribute {name!r}")
    module, _, inside = _PLACES[name].partition(":")
    try:
        found = import_module(module)
    except ImportError as error:
        folder = os.path.abspath(sys.path[0])  # of the user's program
        if error.path and folder != _ROOT and os.path.abspath(error.path).startswith(folder + os.sep):
            raise ImportError(f"{error.path} has the name of a module that StrataFL needs here: rename it") from error
        raise
    globals()[name] = value = getattr(found, inside) if inside else found
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
