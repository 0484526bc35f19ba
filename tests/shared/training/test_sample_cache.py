from __future__ import annotations

import numpy as np
import torch

from shared.training.data.dataset import as_batch
from shared.training.sample_cache import SampleCache

CPU = torch.device("cpu")
X = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
FIVE, OTHERS = np.arange(5), np.arange(5, 10)
BYTES = 5 * 16 * 4


def test_images_are_converted_once_and_have_the_same_bits() -> None:
    cache = SampleCache(2 * BYTES)
    first, again = (cache.batch(X, FIVE.copy(), CPU) for _ in range(2))
    assert first is again
    assert torch.equal(first, as_batch(X[FIVE]))
    inverted = 255 - X
    assert torch.equal(cache.batch(inverted, FIVE, CPU), as_batch(inverted[FIVE])), "another data set is not mixed up"


def test_no_more_is_kept_than_allowed_and_the_first_stay() -> None:
    cache = SampleCache(BYTES + BYTES // 2)
    first = cache.batch(X, FIVE, CPU)
    other = cache.batch(X, OTHERS, CPU)
    assert torch.equal(other, as_batch(X[OTHERS]))
    assert cache.batch(X, OTHERS, CPU) is not other
    assert cache.batch(X, FIVE, CPU) is first
