"""Which certificates have been revoked. The cloud signs the list: nodes pass it on and cannot change it."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Annotated

from pydantic import Field

from shared.core.records import Record
from shared.identity.signing import CloudKey, Issue, Signer

MAX_REVOKED = 20_000
"""Most certificates that are revoked and have not ended."""
LIST_CHARS = 900_000
"""Longest signed list: that of `MAX_REVOKED` certificates is shorter, and the answer to a heartbeat holds it."""
SignedList = Annotated[str, Field(max_length=LIST_CHARS)]
NEVER: Issue = (0, 0)
"""Older than every list."""


class _Content(Record):
    issue: Issue
    revoked: tuple[str, ...]


class RevocationSigner:
    """Signs the list of revoked certificates, at the cloud.

    Args:
        signer: the cloud's.
        token: of the cloud's ownership, larger than that of every cloud process before.
        revoked: the serial numbers; they may change.

    Attributes:
        public_key: with which nodes check the list (PEM).
    """

    def __init__(self, signer: Signer, token: Callable[[], int], revoked: Set[str]) -> None:
        self._signer, self._token, self._revoked = signer, token, revoked
        self.public_key = signer.public_key
        self._number, self._issue, self._signed = 0, NEVER, ""
        self._listed: frozenset[str] = frozenset()

    def newer_than(self, known: Issue) -> str:
        """Returns the signed list for a node that knows an earlier one; nothing if that is the newest."""
        if self._listed != self._revoked or self._issue[0] != self._token():
            self._number += 1
            self._issue, self._listed = (self._token(), self._number), frozenset(self._revoked)
            content = _Content(issue=self._issue, revoked=tuple(sorted(self._listed)))
            self._signed = self._signer.sign(content.model_dump_json().encode())
        return self._signed if known < self._issue else ""


class Revocations:
    """The revoked certificates as a node knows them: a container of their serial numbers.

    Args:
        cloud_key: checks lists.

    Attributes:
        issue: of the list.
        signed: the list as the cloud signed it, to pass it on; empty before the first.
    """

    def __init__(self, cloud_key: CloudKey) -> None:
        self.cloud_key, self.issue, self.signed = cloud_key, NEVER, ""
        self._pem = ""
        self._serials: frozenset[str] = frozenset()

    def __contains__(self, serial: object) -> bool:
        return serial in self._serials

    def take(self, signed: str) -> None:
        """Take a list, unless it is empty or older than the one that is known.

        Raises:
            Busy: this node has not registered yet.
            Forbidden: the cloud has not signed it.
        """
        if not signed or signed == self.signed:
            return
        found = _Content.model_validate_json(self.cloud_key.read(signed, "list of revoked certificates"))
        if found.issue > self.issue or self.cloud_key.pem != self._pem:
            self.issue, self.signed, self._serials = found.issue, signed, frozenset(found.revoked)
            self._pem = self.cloud_key.pem

    def newer_than(self, known: Issue) -> str:
        """Returns the list for a node that knows an earlier one; nothing if it knows this one."""
        return self.signed if known < self.issue else ""
