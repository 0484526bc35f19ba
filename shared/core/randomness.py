"""torch's default generator, which is the whole process's: lent to one thread at a time.

Initial weights and torchvision's transforms draw from it and take no other; services that share a process, as in tests,
would else take each other's draws.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(key: str) -> int:
    """63 bits of sha256 over a stream's key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


_LENT = threading.Lock()


@contextmanager
def lent(seed: int) -> Iterator[None]:
    """Within, draws follow from this seed; then the generator is as it was."""
    with _LENT, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def reseed(seed: int) -> None:
    """Begin anew from this seed, for what a training draws (dropout): one at a time in a process."""
    with _LENT:
        torch.default_generator.manual_seed(seed)
