"""Which orders an agent takes from an edge: those for seats that the cloud has assigned to it, by the newest word."""

from __future__ import annotations

import base64
import random
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from shared.core.errors import Busy, Forbidden, TooLarge
from shared.core.number_sets import NumberSet
from shared.identity.assignments import ASSIGNMENT_CHARS, MAX_RUNS, REMEMBERED, Assigner, Assignments, bits_of
from shared.identity.names import CLOUD
from shared.identity.node_keys import NodeKeys
from shared.identity.signing import CloudKey, Signer


class Setting:
    """A cloud that signs, and an agent that knows its key."""

    def __init__(self, folder: Path) -> None:
        self.signer = Signer(NodeKeys(CLOUD, folder / "cloud"), 1)
        self.cloud, self.key = Assigner(self.signer), CloudKey()
        self.agent = Assignments("a-1", self.key)
        self.key.trust(self.signer.public_key)

    def assign(self, *seats: int, run: str = "r", edge: str = "edge-1", agent: str = "a-1", home: int = 0) -> str:
        return self.cloud.assign(run, home, edge, agent, NumberSet(seats))

    def check(self, shown: str, *seats: int, run: str = "r", edge: str = "edge-1", home: int = 0) -> None:
        self.agent.check(shown, edge, run, home, seats)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_an_edge_orders_the_seats_that_are_assigned_to_it_and_no_others(setting: Setting) -> None:
    shown = setting.assign(2, 3, 4, 9)
    setting.check(shown, 2, 4, 9)
    setting.check(shown, 3)
    for foreign in (1, 5, 8, 10):
        with pytest.raises(Forbidden, match=rf"devices \[{foreign}\]"):
            setting.check(shown, 2, foreign)


def test_an_assignment_is_for_one_edge_with_its_number_one_agent_one_run_and_some_seats(setting: Setting) -> None:
    """The number and the run name the queue in which an order takes the place of others."""
    shown = setting.assign(1, home=1)
    setting.check(shown, 1, home=1)
    others = [(shown, "r", "edge-1"), (setting.assign(1, agent="a-2"), "r", "edge-1")]
    for each, run, edge in (*others, (setting.assign(1), "r", "edge-2"), (setting.assign(1), "r2", "edge-1")):
        with pytest.raises(Forbidden, match="the assignment is for"):
            setting.check(each, 1, run=run, edge=edge)
    with pytest.raises(Forbidden, match=r"edge edge-1 \(number 1\)"):
        setting.check(shown, 1, home=0)
    with pytest.raises(Forbidden, match="names no device"):
        setting.check(shown, home=1)


def test_an_assignment_of_a_run_that_is_over_stops_nothing_of_the_next(setting: Setting) -> None:
    old = setting.assign(1)
    setting.check(old, 1)
    setting.cloud.end_run("r")
    setting.check(setting.assign(1, run="r2"), 1, run="r2")
    with pytest.raises(Forbidden, match="run r is over"):
        setting.check(old, 1)
    setting.check(setting.assign(1), 1)  # the first run was resumed: its placement is sent again


def test_assignments_of_runs_that_train_side_by_side_count_beside_each_other(setting: Setting) -> None:
    first = setting.assign(1)
    second = setting.assign(1, 2, run="r2")
    for _ in range(2):
        setting.check(first, 1)
        setting.check(second, 1, 2, run="r2")
    setting.cloud.end_run("r2")
    setting.check(setting.assign(3, run="r3"), 3, run="r3")
    setting.check(first, 1)  # of a run that goes on
    setting.cloud.end_run("r")
    setting.check(setting.assign(3, run="r3"), 3, run="r3")
    for ended, run in ((first, "r"), (second, "r2")):
        with pytest.raises(Forbidden, match=f"run {run} is over"):
            setting.check(ended, 1, run=run)


def test_only_the_cloud_can_make_or_change_one(setting: Setting, tmp_path: Path) -> None:
    """What it signs for another purpose does not serve either."""
    shown = setting.assign(1)
    packed, signature = shown.split(".")
    head, _, _ = zlib.decompress(base64.b64decode(packed)).partition(b"\n")
    more = base64.b64encode(zlib.compress(head + b"\n" + bits_of(NumberSet(range(99))))).decode()
    other = Assigner(Signer(NodeKeys(CLOUD, tmp_path / "other"), 9)).assign("r", 0, "edge-1", "a-1", NumberSet([1]))
    lists = [setting.signer.sign("revocations", content) for content in (b"", b"{}", b"\xff")]
    forged = ("", "x", ".", f"{more}.{signature}", f"{packed}.{other.split('.')[1]}", other, f"{shown}.x", "ä.ä")
    for each in (*forged, *lists):
        with pytest.raises(Forbidden, match="no assignment that the cloud has signed"):
            setting.check(each, 1)


def test_a_seat_obeys_its_newest_assignment(setting: Setting) -> None:
    first = setting.assign(1, 2)
    setting.check(first, 1, 2)
    setting.check(setting.assign(1, edge="edge-2"), 1, edge="edge-2")
    with pytest.raises(Forbidden, match=r"reassigned devices \[1\]"):
        setting.check(first, 1)
    setting.check(first, 2)  # this seat was not moved
    setting.check(setting.assign(1), 1)  # and that one has come back


def test_assignments_of_a_later_process_are_newer_and_another_key_voids_them(setting: Setting, tmp_path: Path) -> None:
    for _ in range(3):
        setting.check(setting.assign(1), 1)
    old = setting.assign(1)
    restarted = Assigner(Signer(NodeKeys(CLOUD, tmp_path / "cloud"), 2))
    shown = restarted.assign("r", 0, "edge-1", "a-1", NumberSet([1]))
    setting.check(shown, 1)
    with pytest.raises(Forbidden, match="run r is over"):
        setting.check(old, 1)
    setting.key.trust(setting.signer.public_key)
    setting.check(shown, 1)
    setting.key.trust(Signer(NodeKeys(CLOUD, tmp_path / "other"), 1).public_key)
    with pytest.raises(Forbidden, match="signed"):
        setting.check(shown, 1)


def test_a_cloud_key_that_is_none_is_refused_and_an_agent_without_one_asks_the_edge_to_wait(setting: Setting) -> None:
    for pem in ("", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(Forbidden, match="cannot be read"):
            setting.key.trust(pem)
    with pytest.raises(Busy):
        Assignments("a-1", CloudKey()).check("x", "edge-1", "r", 0, [1])


def test_an_assignment_of_many_seats_in_no_order_fits_its_header(setting: Setting) -> None:
    seats = random.Random(1).sample(range(1_000_000), 10_000)
    shown = setting.assign(*seats)
    assert len(shown) < ASSIGNMENT_CHARS
    setting.check(shown, *seats)
    with pytest.raises(Forbidden):
        setting.check(shown, min(set(range(1_000_000)) - set(seats)))
    assert len(setting.assign(*range(1_000_000))) < 1000
    with pytest.raises(TooLarge, match="250000 devices of agent a-1 work for edge edge-1, too many"):
        setting.assign(*random.Random(1).sample(range(1_000_000), 250_000))


@pytest.mark.parametrize("seats", [[], [0], [7], [8], [0, 9, 15, 16, 1000]])
def test_bits_hold_each_seat_and_no_other(setting: Setting, seats: list[int]) -> None:
    shown, held = setting.assign(*seats), []
    for seat in range(-1, 1010):
        with suppress(Forbidden):
            setting.check(shown, seat)
            held.append(seat)
    assert held == seats


def test_what_is_remembered_is_bounded(setting: Setting) -> None:
    for number in range(2 * REMEMBERED):
        setting.check(setting.assign(1, run=f"r{number}"), 1, run=f"r{number}")
    assert len(setting.agent._checked) == REMEMBERED
    assert len(setting.agent._newest) == MAX_RUNS
