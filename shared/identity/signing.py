"""Words of the cloud that other nodes pass on: signed with its key, so that nobody else can make or change one."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shared.core.errors import Busy, Forbidden
from shared.identity.node_keys import NodeKeys

Kind = Literal["assignment", "revocations"]
NAMES: dict[Kind, str] = {"assignment": "assignment", "revocations": "list of revoked certificates"}
Issue = tuple[int, int]
"""How often the cloud has started, and a growing number: of two words on the same thing, the greater is the newer."""
SIGNED = r"^[A-Za-z0-9+/=.]*$"
"""The letters of a signed text."""
NEVER: Issue = (0, 0)
"""Older than every other."""


class Signer:
    """Signs, at the cloud.

    Args:
        keys: the cloud's.
        start: how often the cloud has started, this time included.

    Attributes:
        public_key: with which nodes check what was signed (PEM).
    """

    def __init__(self, keys: NodeKeys, start: int) -> None:
        self._key, self._start, self._number = keys.private_key(), start, 0
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.public_key = self._key.public_key().public_bytes(*form).decode()

    def next_issue(self) -> Issue:
        """Returns an issue that is newer than all before."""
        self._number += 1
        return self._start, self._number

    def sign(self, kind: Kind, content: bytes) -> str:
        """Returns a signed text, fit for a header; none of one kind can be taken for one of another."""
        packed = zlib.compress(kind.encode() + b"\0" + content)
        signature = self._key.sign(packed, ec.ECDSA(hashes.SHA256()))
        return ".".join(base64.b64encode(part).decode() for part in (packed, signature))


class CloudKey:
    """The cloud's key as a node knows it, from the answer to its registration.

    Attributes:
        pem: the key; empty before that.
    """

    def __init__(self) -> None:
        self._key: ec.EllipticCurvePublicKey | None = None
        self.pem = ""

    def trust(self, pem: str) -> None:
        """Take the key.

        Raises:
            Forbidden: it is none.
        """
        try:
            found = serialization.load_pem_public_key(pem.encode())
        except ValueError:
            raise Forbidden("the cloud's key cannot be read") from None
        if not isinstance(found, ec.EllipticCurvePublicKey):
            raise Forbidden("the cloud's key is of another kind")
        self._key, self.pem = found, pem

    def read(self, signed: str, kind: Kind) -> bytes:
        """Returns what the cloud has signed.

        Args:
            signed: the text.
            kind: of what it should be.

        Raises:
            Busy: this node has not registered yet, so it cannot tell.
            Forbidden: the cloud has not signed it.
        """
        if self._key is None:
            raise Busy("this node has not registered with the cloud yet")
        try:
            packed, signature = (base64.b64decode(part, validate=True) for part in signed.split("."))
            self._key.verify(signature, packed, ec.ECDSA(hashes.SHA256()))
            found, _, content = zlib.decompress(packed).partition(b"\0")
        except (ValueError, binascii.Error, InvalidSignature, zlib.error):
            found, content = b"", b""
        if found != kind.encode():
            raise Forbidden(f"there is no {NAMES[kind]} that the cloud has signed")
        return content
