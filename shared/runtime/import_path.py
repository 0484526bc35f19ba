"""The order in which Python looks for modules in a process of ours.

The folder in which somebody works may hold a `secrets.py`, a `redis.py`, a checkout of torch or a package `shared`; a
process of ours must not take them for the modules of these names. Packages of plug-ins are still found there, and what
PYTHONPATH names comes before what is installed, whether StrataFL is a checkout or lies in `site-packages`.

As a program, `python -P import_path.py MODULE ARGUMENT...` runs a module as `python -m` would, in this order.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of our packages: a checkout, or `site-packages`."""
PACKAGES = ("cloud_server", "device_agent", "edge_server", "shared", "strata")
"""Our packages, which are found in that folder alone."""
_LIBRARY = os.path.dirname(os.__file__)
_ZIP = "python{}{}.zip".format(*sys.version_info[:2])


class _OurPackages:
    """Finds our packages before any other finder does."""

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        """The spec of a package of ours at the top level; None of any other module."""
        return PathFinder.find_spec(name, [ROOT]) if path is None and name in PACKAGES else None


def installed_first() -> None:
    """Puts our packages first, then Python's library, PYTHONPATH, what is installed, and last the working folder."""
    if _OurPackages not in sys.meta_path:
        sys.meta_path.insert(0, _OurPackages)
    here = _working_folder()
    found = [os.path.abspath(entry) for entry in sys.path if here or os.path.isabs(entry)]  # "" is the working folder
    rest = (entry for entry in found if entry != here)
    sys.path[:] = dict.fromkeys([*filter(_of_python, found), *rest, ROOT, *([here] if here else [])])


def _working_folder() -> str:
    """The working folder; empty if it has been removed meanwhile."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _of_python(entry: str) -> bool:
    return entry in (_LIBRARY, os.path.join(_LIBRARY, "lib-dynload")) or os.path.basename(entry) == _ZIP


if __name__ == "__main__":
    installed_first()
    import runpy

    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
