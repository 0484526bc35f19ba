"""Which certificates have been revoked. The cloud signs the list: nodes pass it on and cannot change it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from shared.core.errors import Conflict
from shared.core.records import Record
from shared.identity.signing import NEVER, SIGNED, CloudKey, Issue, Signer

MAX_REVOKED = 20_000
"""Most certificates in the list."""
LIST_CHARS = 900_000
"""Longest signed list: that of `MAX_REVOKED` certificates is shorter, and the answer to a heartbeat holds it."""
SignedList = Annotated[str, Field(max_length=LIST_CHARS, pattern=SIGNED)]


class _Content(Record):
    issue: Issue
    revoked: tuple[str, ...]


class RevocationSigner:
    """Signs the list of revoked certificates, at the cloud.

    Args:
        signer: the cloud's.
        revoked: the serial numbers, the newest last; they may change. If there are too many, the list holds the newest.

    Attributes:
        public_key: with which nodes check the list (PEM).
    """

    def __init__(self, signer: Signer, revoked: Collection[str]) -> None:
        self._signer, self._revoked, self.public_key = signer, revoked, signer.public_key
        self._issue, self._signed = NEVER, ""
        self._listed: tuple[str, ...] | None = None

    def newer_than(self, known: Issue) -> str:
        """Returns the signed list for a node that knows an earlier one; nothing if that is the newest."""
        revoked = tuple(self._revoked)[-MAX_REVOKED:]
        if self._listed != revoked:
            self._issue, self._listed = self._signer.next_issue(), revoked
            content = _Content(issue=self._issue, revoked=revoked)
            self._signed = self._signer.sign("revocations", content.model_dump_json().encode())
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
            Conflict: this node has not registered yet, so it cannot tell who signed it.
            Forbidden: the cloud has not signed it.
        """
        if not signed or signed == self.signed:
            return
        if not self.cloud_key.pem:
            raise Conflict("this node has not registered with the cloud yet")
        found = _Content.model_validate_json(self.cloud_key.read(signed, "revocations"))
        if found.issue > self.issue or self.cloud_key.pem != self._pem:
            self.issue, self.signed, self._serials = found.issue, signed, frozenset(found.revoked)
            self._pem = self.cloud_key.pem

    def newer_than(self, known: Issue) -> str:
        """Returns the list for a node that knows an earlier one; nothing if it knows this one."""
        return self.signed if known < self.issue else ""
