"""Seeds of random streams, and exclusive use of torch's default generator.

Code of a user may draw from the generators of Python and numpy, too; where it does, these are seeded alike.
Initial weights and torchvision's transforms draw from the default generator of the process and accept no other.
Services that share a process, as in tests, must not take each other's draws; so it is used by one thread at a time.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream_seed(key: str) -> int:
    """Returns the seed of a random stream: 63 bits of the sha256 of its key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


_LOCK = threading.RLock()


@contextmanager
def seeded_default_generator(seed: int) -> Iterator[None]:
    """Seeds the default generator for the body of a `with`, and restores its state afterwards."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seeds the default generators of torch, numpy and Python for the body of a `with`; restores them afterwards."""
    with seeded_default_generator(seed):
        of_python, of_numpy = random.getstate(), np.random.get_state()
        try:
            _seed_others(seed)
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _seed_others(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)


def reseed_all(seed: int) -> None:
    """Seeds the default generators of torch, numpy and Python for a training with code of a user."""
    reseed(seed)
    _seed_others(seed)


def reseed(seed: int) -> None:
    """Seeds the default generator for a training (dropout); a process trains one model at a time."""
    with _LOCK:
        torch.default_generator.manual_seed(seed)
