"""The cloud's word on which seats of an agent an edge may order, which the edge shows the agent with each order.

It is signed, so an edge can neither make one nor change one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Annotated

import numpy as np
from pydantic import Field

from shared.core.errors import Forbidden, TooLarge
from shared.core.number_sets import NumberSet
from shared.core.records import Record
from shared.identity.signing import NEVER, SIGNED, CloudKey, Issue, Signer

ASSIGNMENT_CHARS = 32_768
"""Longest assignment, as the value of a header: that of 10,000 seats among a million, in no order, is shorter."""
MAX_RUNS = 64
"""Runs of which an agent remembers assignments: more cannot train at a time."""
REMEMBERED = 64
"""Assignments whose signature an agent need not check again."""
SignedAssignment = Annotated[str, Field(max_length=ASSIGNMENT_CHARS, pattern=SIGNED)]


class Assignment(Record):
    """That seats of a run visit an edge by way of an agent; the seats follow in the signed text, as bits.

    Attributes:
        home: the number of the edge in the run.
        edge: the name of the edge's process.
        agent: its id.
        issue: a seat obeys the newest assignment.
        oldest: issue of the first assignment of all runs that trained then; older ones count no more.
    """

    run_id: str
    home: int
    edge: str
    agent: str
    issue: Issue
    oldest: Issue = NEVER


def bits_of(seats: NumberSet) -> bytes:
    """Bytes in which bit `n` of all is set for each seat `n`."""
    bits = np.zeros(int(seats.array[-1]) + 1 if len(seats) else 0, np.bool_)
    bits[seats.array] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _has(bits: bytes, seat: int) -> bool:
    return 0 <= seat < 8 * len(bits) and bool(bits[seat // 8] & 1 << seat % 8)


class Assigner:
    """Signs assignments, at the cloud.

    Args:
        signer: the cloud's.
    """

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._first: dict[str, Issue] = {}

    def end_run(self, run_id: str) -> None:
        """Note that a run trains no more: assignments made from now on make those of it void."""
        self._first.pop(run_id, None)

    def assign(self, run_id: str, home: int, edge: str, agent: str, seats: NumberSet) -> str:
        """Returns a signed assignment, as the value of a header.

        Raises:
            TooLarge: the seats are so many, in no order, that they do not fit into a header.
        """
        issue = self._signer.next_issue()
        oldest = min(self._first.setdefault(run_id, issue), *self._first.values())
        what = Assignment(run_id=run_id, home=home, edge=edge, agent=agent, issue=issue, oldest=oldest)
        signed = self._signer.sign("assignment", what.model_dump_json().encode() + b"\n" + bits_of(seats))
        if len(signed) > ASSIGNMENT_CHARS:
            cause = f"{len(seats)} devices of agent {agent} work for edge {edge}, too many to list in one header"
            raise TooLarge(f"{cause}; with association: balanced, or with more agents, they would fit")
        return signed


class Assignments:
    """What the cloud has assigned to an agent, as edges show it there.

    Args:
        agent: the id of the agent.
        cloud_key: checks what edges show.
    """

    def __init__(self, agent: str, cloud_key: CloudKey) -> None:
        self.agent, self.cloud_key = agent, cloud_key
        self._pem = ""
        self._checked: OrderedDict[str, tuple[Assignment, bytes]] = OrderedDict()
        self._oldest = NEVER
        self._newest: OrderedDict[str, dict[int, Issue]] = OrderedDict()

    def check(self, shown: str, edge: str, run_id: str, home: int, seats: Collection[int]) -> None:
        """Refuse an order that the cloud has not assigned to the edge that sends it.

        Each assignment says which older ones count no more, because their runs have ended.

        Args:
            shown: the assignment that came with the order, empty for none.
            edge: who sends it.
            run_id: of the order.
            home: the number of the edge in the run, as the order has it.
            seats: that it visits.

        Raises:
            Busy: this agent has not registered yet, so it cannot tell.
            Forbidden: there is no assignment; it is another one's, for other seats, or older than one that was shown;
                or the order has no seats.
        """
        if self._pem != self.cloud_key.pem:  # another cloud counts anew
            self._pem = self.cloud_key.pem
            self._checked.clear()
            self._newest.clear()
            self._oldest = NEVER
        found, assigned = self._checked[shown] = self._checked.get(shown) or self._read(shown)
        self._checked.move_to_end(shown)
        while len(self._checked) > REMEMBERED:
            self._checked.popitem(last=False)
        if (found.agent, found.edge, found.run_id, found.home) != (self.agent, edge, run_id, home):
            whose = f"edge {found.edge} (number {found.home}) and agent {found.agent} in run {found.run_id}"
            raise Forbidden(f"the assignment is for {whose}")
        if not seats:
            raise Forbidden("the request names no device")
        foreign = [seat for seat in seats if not _has(assigned, seat)]
        if foreign:
            raise Forbidden(f"edge {edge} may not send tasks to devices {foreign[:10]} of this agent")
        if found.issue < self._oldest:
            raise Forbidden(f"run {run_id} is over for this agent: it has newer assignments of other runs")
        newest = self._newest.setdefault(run_id, {})
        moved = [seat for seat in seats if newest.get(seat, found.issue) > found.issue]
        if moved:
            raise Forbidden(f"the cloud has reassigned devices {moved[:10]}, which were edge {edge}'s")
        newest |= dict.fromkeys(seats, found.issue)
        self._oldest = max(self._oldest, found.oldest)
        self._newest.move_to_end(run_id)
        while len(self._newest) > MAX_RUNS:
            self._newest.popitem(last=False)

    def _read(self, shown: str) -> tuple[Assignment, bytes]:
        head, _, bits = self.cloud_key.read(shown, "assignment").partition(b"\n")
        return Assignment.model_validate_json(head), bits
