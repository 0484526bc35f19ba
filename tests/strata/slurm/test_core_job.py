"""The core's job: on which port its cloud listens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from shared.core.errors import BadInput
from strata.launcher.environment import listening
from strata.slurm import core_job
from strata.slurm.core_job import Core
from strata.slurm.deployment import Address
from tests.strata.slurm.made import deployment

HERE = "127.0.0.1"


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Core:
    """A core whose Redis is there, and whose cloud is no process."""
    monkeypatch.setattr(core_job, "execute", lambda *_: SimpleNamespace(returncode=None))
    return with_redis(Core(deployment(tmp_path), HERE))


def with_redis(core: Core) -> Core:
    redis: Any = SimpleNamespace(url=f"redis://{HERE}:1")
    core.redis = redis
    return core


def test_a_cloud_that_is_started_again_is_where_all_others_know_it(core: Core) -> None:
    core.start_again("cloud")
    known = core.url
    with listening(HERE, urlsplit(known).port or 0), pytest.raises(BadInput, match="is not available"):
        core.start_again("cloud")
    core.start_again("cloud")
    assert core.url == known


def test_the_next_core_on_this_node_takes_another_port_if_that_of_the_last_one_is_taken(core: Core) -> None:
    with listening(HERE, 0) as other:
        url = f"http://{HERE}:{other.getsockname()[1]}"
        core.deployment.announce(Address(url=url, redis=f"redis://{HERE}:1", node="n1", job="1"))
        following = with_redis(Core(core.deployment, HERE))
        following.start_again("cloud")
        assert following.url != url
    following = with_redis(Core(core.deployment, HERE))
    following.start_again("cloud")
    assert following.url == url
