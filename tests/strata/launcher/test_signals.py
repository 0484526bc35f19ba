"""Signals of commands: ignored ones stay ignored, all others let the command clean up."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from strata.launcher.signals import as_interrupt, postponed


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """Whatever ignores SIGHUP for the tests themselves."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def nohup(terminal: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_an_ignored_signal_stays_ignored(nohup: None) -> None:
    with as_interrupt(), postponed():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_another_signal_interrupts_and_is_told_by_the_exit_status(number: signal.Signals, status: int) -> None:
    with pytest.raises(SystemExit) as ended, as_interrupt():
        signal.raise_signal(number)
    assert ended.value.code == status


def test_the_first_signal_of_a_cleanup_comes_after_it(nohup: None) -> None:
    steps = []
    with pytest.raises(SystemExit) as ended, as_interrupt(), postponed():  # noqa: PT012 - what follows is why
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        steps.append("cleaned up")
    assert (steps, ended.value.code) == (["cleaned up"], 143)
