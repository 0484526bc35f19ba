"""Words of the cloud that other nodes pass on: signed with its key, so that nobody else can make or change one."""

from __future__ import annotations

import base64
import binascii
import zlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shared.core.errors import Busy, Forbidden
from shared.identity.node_keys import NodeKeys

Issue = tuple[int, int]
"""The token of the cloud's ownership and a growing number: of two words on the same thing, the greater is the newer."""


class Signer:
    """Signs, at the cloud.

    Args:
        keys: the cloud's.

    Attributes:
        public_key: with which nodes check what was signed (PEM).
    """

    def __init__(self, keys: NodeKeys) -> None:
        self._key = keys.private_key()
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.public_key = self._key.public_key().public_bytes(*form).decode()

    def sign(self, content: bytes) -> str:
        """Returns a signed text, fit for a header."""
        packed = zlib.compress(content)
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

    def read(self, signed: str, what: str) -> bytes:
        """Returns what the cloud has signed.

        Args:
            signed: the text.
            what: it should be, for the error.

        Raises:
            Busy: this node has not registered yet, so it cannot tell.
            Forbidden: the cloud has not signed it.
        """
        if self._key is None:
            raise Busy("this node has not registered with the cloud yet")
        try:
            packed, signature = (base64.b64decode(part, validate=True) for part in signed.split("."))
            self._key.verify(signature, packed, ec.ECDSA(hashes.SHA256()))
        except (ValueError, binascii.Error, InvalidSignature):
            raise Forbidden(f"there is no {what} that the cloud has signed") from None
        return zlib.decompress(packed)
