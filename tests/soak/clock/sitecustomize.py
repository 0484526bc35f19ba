"""A wall clock that jumps, for processes with this folder on PYTHONPATH: Python imports this module when it starts.

`SOAK_CLOCK` names a file with seconds to add; it is read whenever the clock is, so that the clock jumps when the file
changes. The monotonic clock does not jump, as when somebody sets the system's time.
"""

import datetime
import os
import time
from typing import Any

_FILE = os.environ.get("SOAK_CLOCK", "")
_time, _time_ns = time.time, time.time_ns


def _jumped_s() -> float:
    try:
        with open(_FILE, encoding="ascii") as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


class _Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime.fromtimestamp(time.time(), tz)


if _FILE:
    time.time = lambda: _time() + _jumped_s()
    time.time_ns = lambda: _time_ns() + int(_jumped_s() * 1e9)
    datetime.datetime = _Jumping  # type: ignore[misc]
