"""The cloud's word on which seats of an agent an edge may order, which the edge shows the agent with each order.

It is signed with the cloud's key, so an edge can neither make one nor change one.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field

from shared.core.errors import Busy, Forbidden
from shared.core.records import Record
from shared.identity.node_keys import NodeKeys

ASSIGNMENT_CHARS = 32_768
"""Longest assignment, as the value of a header: that of 10,000 seats among a million, in no order, is shorter."""
REMEMBERED = 64
"""Assignments whose signature an agent need not check again."""
RUNS = 100
"""Runs of which an agent remembers its newest assignments."""
Token = Annotated[str, Field(max_length=ASSIGNMENT_CHARS)]
Issue = tuple[int, int]


class Assignment(Record):
    """That seats of a run visit an edge by way of an agent; the seats follow in the signed text, as bits.

    Attributes:
        edge: the name of the edge's process.
        agent: its id.
        issue: the token of the cloud's ownership and a growing number: a seat obeys the newest assignment.
    """

    run_id: str
    edge: str
    agent: str
    issue: Issue


def bits_of(seats: Collection[int]) -> bytes:
    """Bytes in which bit `n` of all is set for each seat `n`."""
    bits = bytearray(max(seats, default=-1) // 8 + 1)
    for seat in seats:
        bits[seat // 8] |= 1 << seat % 8
    return bytes(bits)


def _has(bits: bytes, seat: int) -> bool:
    return 0 <= seat < 8 * len(bits) and bool(bits[seat // 8] & 1 << seat % 8)


class Assigner:
    """Signs assignments, at the cloud.

    Args:
        keys: the cloud's.
        token: of the cloud's ownership, larger than that of every cloud process before.
    """

    def __init__(self, keys: NodeKeys, token: Callable[[], int]) -> None:
        self._key, self._token, self._number = keys.private_key(), token, 0

    @property
    def public_key(self) -> str:
        """The key with which agents check assignments (PEM)."""
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        return self._key.public_key().public_bytes(*form).decode()

    def assign(self, run_id: str, edge: str, agent: str, seats: Collection[int]) -> str:
        """Returns a signed assignment, as the value of a header."""
        self._number += 1
        what = Assignment(run_id=run_id, edge=edge, agent=agent, issue=(self._token(), self._number))
        packed = zlib.compress(what.model_dump_json().encode() + b"\n" + bits_of(seats))
        signature = self._key.sign(packed, ec.ECDSA(hashes.SHA256()))
        return ".".join(base64.b64encode(part).decode() for part in (packed, signature))


class Assignments:
    """What the cloud has assigned to an agent, as edges show it there.

    Args:
        agent: the id of the agent.

    Attributes:
        cloud_key: the key with which the cloud signs; None until the agent has registered.
    """

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.cloud_key: ec.EllipticCurvePublicKey | None = None
        self._checked: OrderedDict[str, tuple[Assignment, bytes]] = OrderedDict()
        self._newest: OrderedDict[str, dict[int, Issue]] = OrderedDict()

    def trust(self, pem: str) -> None:
        """Take the cloud's key from its answer to the registration.

        Raises:
            Forbidden: it is none.
        """
        try:
            found = serialization.load_pem_public_key(pem.encode())
        except ValueError:
            raise Forbidden("the cloud's key for assignments cannot be read") from None
        if not isinstance(found, ec.EllipticCurvePublicKey):
            raise Forbidden("the cloud's key for assignments is of another kind")
        if self.cloud_key is None or found.public_numbers() != self.cloud_key.public_numbers():
            self._checked.clear()
            self._newest.clear()
        self.cloud_key = found

    def check(self, shown: str, edge: str, run_id: str, seats: Collection[int]) -> None:
        """Refuse an order that the cloud has not assigned to the edge that sends it.

        Args:
            shown: the assignment that came with the order, empty for none.
            edge: who sends it.
            run_id: of the order.
            seats: that it visits.

        Raises:
            Busy: this agent has not registered yet, so it cannot tell.
            Forbidden: there is no assignment; it is another one's, for other seats, or older than one that was shown.
        """
        if self.cloud_key is None:
            raise Busy("this agent takes no orders before it has registered with the cloud")
        found, assigned = self._checked[shown] = self._checked.get(shown) or self._read(shown, self.cloud_key)
        self._checked.move_to_end(shown)
        while len(self._checked) > REMEMBERED:
            self._checked.popitem(last=False)
        if (found.agent, found.edge, found.run_id) != (self.agent, edge, run_id):
            raise Forbidden(f"the assignment is for edge {found.edge} and agent {found.agent} in run {found.run_id}")
        foreign = [seat for seat in seats if not _has(assigned, seat)]
        if foreign:
            raise Forbidden(f"the cloud has not assigned the seats {foreign[:10]} of this agent to edge {edge}")
        newest = self._newest.setdefault(run_id, {})
        self._newest.move_to_end(run_id)
        while len(self._newest) > RUNS:
            self._newest.popitem(last=False)
        moved = [seat for seat in seats if newest.get(seat, found.issue) > found.issue]
        if moved:
            raise Forbidden(f"the cloud has assigned the seats {moved[:10]} anew since it assigned them to edge {edge}")
        newest |= dict.fromkeys(seats, found.issue)

    def forget(self, run_id: str) -> None:
        """Forget a run that was deleted."""
        self._newest.pop(run_id, None)

    def _read(self, shown: str, key: ec.EllipticCurvePublicKey) -> tuple[Assignment, bytes]:
        try:
            packed, signature = (base64.b64decode(part, validate=True) for part in shown.split("."))
            key.verify(signature, packed, ec.ECDSA(hashes.SHA256()))
        except (ValueError, binascii.Error, InvalidSignature):
            raise Forbidden("the order came without an assignment that the cloud has signed") from None
        head, _, bits = zlib.decompress(packed).partition(b"\n")
        return Assignment.model_validate_json(head), bits
