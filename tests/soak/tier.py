"""A tier whose wall clock can be made to jump, as a module of a topology.

`SOAK_CLOCK` names a file with seconds to add; it is read whenever the clock is, so that the clock jumps when the file
changes. The monotonic clock does not jump, as when somebody sets the system's time.
"""

import datetime
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

_MODULES = {
    "CLOUD_STATE_DIR": "cloud_server",
    "EDGE_STATE_DIR": "edge_server",
    "AGENT_STATE_DIR": "device_agent",
}
_time, _time_ns = time.time, time.time_ns


def _jumped_s() -> float:
    try:
        return float(Path(os.environ["SOAK_CLOCK"]).read_text(encoding="ascii") or 0)
    except OSError:
        return 0.0


def _jumping_time() -> float:
    return _time() + _jumped_s()


def _jumping_time_ns() -> int:
    return _time_ns() + int(_jumped_s() * 1e9)


class _Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime.fromtimestamp(_jumping_time(), tz)


def _replace_clocks() -> None:
    """Replace the clocks in all modules: a forked process has most of them already."""
    clocks = {
        "time": (_time, _jumping_time),
        "time_ns": (_time_ns, _jumping_time_ns),
        "datetime": (datetime.datetime, _Jumping),
    }
    for module in list(sys.modules.values()):
        for name, (true, jumping) in clocks.items():
            if getattr(module, "__dict__", {}).get(name) is true:
                setattr(module, name, jumping)


if __name__ == "__main__":
    if "SOAK_CLOCK" in os.environ:
        _replace_clocks()
    (tier,) = (module for name, module in _MODULES.items() if name in os.environ)
    runpy.run_module(tier, run_name="__main__", alter_sys=True)
