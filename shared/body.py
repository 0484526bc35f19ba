"""Encoded records as bytes, in parts that were never joined, and what tells whether they came as they were sent."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass


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


def digest_of(body: bytearray | memoryview | bytes) -> str:
    """sha256 over a body in one piece."""
    return hashlib.sha256(body).hexdigest()
