"""The order in which Python looks for modules in a process of ours.

The folder in which somebody works may hold a `secrets.py`, a `redis.py`, a checkout of torch or a package `shared`; a
process of ours must not take them for the modules of these names. Packages of plug-ins are still found there.

As a program, `python -P import_path.py MODULE ARGUMENT...` runs a module as `python -m` would, in this order.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of our packages: a checkout, or `site-packages`."""
_LIBRARY = os.path.dirname(os.__file__)
_ZIP = "python{}{}.zip".format(*sys.version_info[:2])


def installed_first() -> None:
    """Orders the path: Python's library, our packages, PYTHONPATH, what is installed, and last the working folder."""
    here = _working_folder()
    found = [os.path.abspath(entry) for entry in sys.path if here or os.path.isabs(entry)]  # "" is the working folder
    rest = (entry for entry in found if entry != here)
    sys.path[:] = dict.fromkeys([*filter(_of_python, found), ROOT, *rest, *([here] if here else [])])


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
