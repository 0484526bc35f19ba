"""A run is followed to wherever its cloud moves, and given up once no job of the core is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.core.errors import NotReady, Unreachable
from strata.api.client import Client
from strata.slurm import following as followed
from strata.slurm.commands import Slurm
from strata.slurm.deployment import Address
from strata.slurm.following import following
from strata.slurm.queue import Job
from tests.strata.slurm.made import deployment

PLACES = [Address(url=f"http://10.0.0.{n}:8000", redis="redis://10.0.0.1:1/0", node=f"n{n}", job="7") for n in (1, 2)]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets where the cloud answers from look to look, and whether the core is in the queue."""

    def set_to(*addresses: Address | None, queued: bool = True) -> None:
        left = list(addresses)
        jobs = {"core": [Job("7", "core", 0, "PENDING")]} if queued else {}
        monkeypatch.setattr(followed, "reachable", lambda _: left.pop(0) if len(left) > 1 else left[0])
        monkeypatch.setattr(followed, "jobs_of", lambda *_: jobs)

    return set_to


def test_a_run_is_followed_on_where_its_cloud_has_moved(tmp_path: Path, answers: Callable[..., None]) -> None:
    answers(PLACES[0], None, None, PLACES[1])
    urls, said, slept = list[str](), list[str](), list[float]()

    def follow(client: Client) -> str:
        urls.append(client.url)
        if len(urls) == 1:
            raise Unreachable("no cloud answers")
        return "ended"

    made = deployment(tmp_path, every_s=3.0)
    assert following(made, Slurm(), follow, 60.0, said.append, slept.append) == "ended"
    assert urls == [PLACES[0].url, PLACES[1].url]
    assert said == ["no cloud answers; its job goes on, maybe on another node"]
    assert slept == [3.0, 3.0]


def test_without_a_job_of_the_core_nothing_is_waited_for(
    tmp_path: Path, answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(None, queued=False)
    monkeypatch.setattr(followed, "_GONE_S", -1.0)
    with pytest.raises(NotReady, match="the core's job is no longer in the queue, and no cloud answers"):
        following(deployment(tmp_path), Slurm(), lambda _: None, 60.0, lambda _: None, lambda _: None)


def test_a_core_that_waits_in_the_queue_is_waited_for_a_limited_time(
    tmp_path: Path, answers: Callable[..., None]
) -> None:
    answers(None)
    with pytest.raises(NotReady, match=r"no cloud has answered for 0\.01 s"):
        following(deployment(tmp_path), Slurm(), lambda _: None, 0.01, lambda _: None, lambda _: None)
