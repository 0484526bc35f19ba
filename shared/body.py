"""Encoded records as bytes: in parts that were never joined, and how a garbled one is told."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass

from shared.errors import Garbled


@dataclass(frozen=True)
class Body:
    """An encoded record: buffers to be sent one after another, without having been joined."""

    parts: tuple[bytes | memoryview, ...]
    n_bytes: int

    def digest(self) -> str:
        """sha256 over the bytes."""
        sha = hashlib.sha256()
        for part in self.parts:
            sha.update(part)
        return sha.hexdigest()

    def checksum(self) -> str:
        """CRC-32 over the bytes: tells a garbled answer at a quarter of the digest's cost."""
        found = 0
        for part in self.parts:
            found = zlib.crc32(part, found)
        return f"{found:08x}"

    def join(self) -> bytearray:
        """One buffer, a copy."""
        return bytearray().join(self.parts)


def digest_of(body: bytearray | memoryview | bytes, claimed: str | None = None) -> str:
    """sha256 over a received body.

    Raises:
        Garbled: the sender claimed another digest.
    """
    found = hashlib.sha256(body).hexdigest()
    if claimed is not None and claimed != found:
        raise Garbled("the body is not what its digest says")
    return found


def check_sum(body: bytearray | memoryview | bytes, claimed: str | None) -> None:
    """See that a body is what was sent.

    Raises:
        Garbled: the sender claimed another checksum.
    """
    if claimed is not None and claimed != f"{zlib.crc32(body):08x}":
        raise Garbled("the body is not what its checksum says")
