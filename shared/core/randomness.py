"""Seeds of random streams, and exclusive use of torch's default generator.

Initial weights and torchvision's transforms draw from the default generator of the process and accept no other.
Services that share a process, as in tests, must not take each other's draws; so it is used by one thread at a time.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(key: str) -> int:
    """Returns the seed of a random stream: 63 bits of the sha256 of its key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


_LOCK = threading.Lock()


@contextmanager
def seeded_default_generator(seed: int) -> Iterator[None]:
    """Seeds the default generator for the body of a `with`, and restores its state afterwards."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def reseed(seed: int) -> None:
    """Seeds the default generator for a training (dropout); a process trains one model at a time."""
    with _LOCK:
        torch.default_generator.manual_seed(seed)
