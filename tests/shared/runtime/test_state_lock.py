"""A folder of state belongs to one process."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from shared.core.errors import Conflict
from shared.runtime.state_lock import alone_in


def test_a_second_holder_is_refused_by_name_until_the_first_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    first = alone_in(folder, "edge")
    holder = f"EDGE_STATE_DIR: {folder} is the state of another process that runs (process {os.getpid()} on "
    for _ in range(2):
        with pytest.raises(Conflict, match=re.escape(holder)):
            alone_in(folder, "edge")
    del first
    alone_in(folder, "edge")
