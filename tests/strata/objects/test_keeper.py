"""The thread that keeps a local topology, with a topology that starts nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.core.errors import NotReady
from strata.launcher.process import ProcessDied
from strata.launcher.topology import Topology
from strata.objects.local import Keeper, LocalCloud


class Pretended:
    """A topology that notes the thread which started it, and whether it has ended."""

    def __init__(self, *, interrupts: bool = False, ready: bool = True) -> None:
        self.interrupts, self.ready, self.ended, self.lost = interrupts, ready, False, False
        self.thread: threading.Thread | None = None
        self.url, self.folder, self.authority_file = "", Path(), None

    def __enter__(self) -> Pretended:
        self.thread = threading.current_thread()
        return self

    def __exit__(self, *_: object) -> None:
        if self.interrupts:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C while the topology is being stopped
            time.sleep(0.2)  # long enough for an interrupt that is not postponed
        self.ended = True

    def wait_ready(self, ready_s: float) -> None:
        if not self.ready:
            raise NotReady("edge-1 is missing")

    def check_vital(self) -> None:
        if self.lost:
            raise ProcessDied("redis-server ended")

    def dead(self) -> list[object]:
        return []

    def trim_logs(self) -> None:
        pass


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_cloud(*_: Any) -> contextlib.nullcontext[SimpleNamespace]:
        return contextlib.nullcontext(SimpleNamespace(settle=lambda: None))

    monkeypatch.setattr("strata.objects.local.fleet_of", without_cloud)


def kept(topology: Pretended) -> Keeper:
    return Keeper(cast(Topology, topology))


def test_a_topology_is_started_on_a_thread_of_its_own_and_stopped_once() -> None:
    keeper, steps = kept(topology := Pretended()), list[bool]()
    for act in (lambda: keeper.begin(1.0), keeper.end, keeper.end):
        act()
        steps.append(topology.ended)
    assert steps == [False, True, True]
    assert topology.thread is not threading.current_thread()


def test_a_local_cloud_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    topology = Pretended()
    topology.url, topology.folder = "http://127.0.0.1:9", tmp_path
    keeper = kept(topology)
    keeper.begin(1.0)
    cloud = LocalCloud(keeper, tmp_path)
    cloud._connection.client._outages.answered()
    topology.lost = True
    with pytest.raises(ProcessDied, match="redis-server ended"):
        cloud._connection.client.topology()
    cloud.close()


def test_a_topology_that_is_not_ready_in_time_is_stopped() -> None:
    with pytest.raises(NotReady, match="edge-1 is missing"):
        kept(topology := Pretended(ready=False)).begin(1.0)
    assert topology.ended


def test_ctrl_c_waits_until_the_topology_has_ended() -> None:
    keeper = kept(topology := Pretended(interrupts=True))
    keeper.begin(1.0)
    with pytest.raises(KeyboardInterrupt):
        keeper.end()
    assert topology.ended


def test_ctrl_c_at_the_first_step_of_the_end_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = kept(topology := Pretended())
    keeper.begin(1.0)
    set_ending = keeper._ending.set

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        set_ending()

    monkeypatch.setattr(keeper._ending, "set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keeper.end()
    assert topology.ended


def test_a_process_forked_from_the_owner_stops_nothing_and_takes_nothing_for_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = kept(topology := Pretended())
    keeper.begin(1.0)
    topology.lost = True
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        keeper.check()  # the processes are no children of its own, which it could not tell from ended ones
        keeper.end()
    with pytest.raises(ProcessDied):
        keeper.check()
    steps = [topology.ended]
    keeper.end()
    assert [*steps, topology.ended] == [False, True]
