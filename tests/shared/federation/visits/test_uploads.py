"""An agent sends single updates or their sum, whichever is smaller."""

from __future__ import annotations

from typing import Annotated, Any, cast

import pytest
import torch

from shared.core.scores import Score
from shared.federation.hooks import MaskOf, Mean, ModelState, Record
from shared.federation.messages import Contribution, Outcome
from shared.federation.visits.uploads import UploadBuilder, _AnswerSizes, _sum_is_smaller, answer_bytes
from tests.shared.algorithms.layouts import resolved

DATA = {"name": "digits", "n_train": 40, "n_test": 10}


class Masked(Record):
    """An update that is averaged per position."""

    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]


@pytest.mark.parametrize(("n", "n_single"), [(1, 1), (2, 2), (3, 0), (4, 0)])
def test_three_updates_of_four_bytes_an_element_make_a_sum_of_eight(n: int, n_single: int) -> None:
    experiment = resolved(data=DATA, num_devices=5, num_edges=1)
    builder, kind = UploadBuilder(experiment, n_due=n), cast("Any", experiment.algorithm.update)
    delta = {name: torch.zeros(tensor.shape) for name, tensor in experiment.shapes.items()}
    for seat in range(n):
        builder.add(Contribution[Any](seat=seat, n_samples=8, update=kind(delta=delta)), 100 + seat)
    uploads = builder.uploads()
    assert len(uploads.contributions) == n_single
    if n_single:
        assert uploads.partial_sum is None
        assert uploads.link_bytes == {}
    else:
        assert uploads.partial_sum is not None
        assert (uploads.partial_sum.n_updates, uploads.partial_sum.n_samples) == (n, 8 * n)
        assert uploads.link_bytes == {seat: 100 + seat for seat in range(n)}


@pytest.mark.parametrize(("n", "is_smaller"), [(1, False), (4, False), (15, False), (16, True)])
def test_sixteen_updates_of_a_quarter_of_a_tensor_make_a_smaller_sum(n: int, is_smaller: bool) -> None:
    """Each has 16 of 64 elements of 4 bytes and 3 bytes of places, the sum a sum and a weight of 8 bytes at all 64."""
    mask = torch.zeros(8, 8)
    mask[:4, :4] = 1
    update = Masked(delta={"w": torch.ones(8, 8)}, mask={"w": mask})
    assert _sum_is_smaller([Contribution[Any](seat=0, n_samples=8, update=update)], n) is is_smaller


class Delta(Record):
    """An update of whole tensors."""

    delta: ModelState
    more: dict[str, float] | None = None


def test_a_size_from_the_answer_before_is_the_size_that_is_sent() -> None:
    sizes, one, mask = _AnswerSizes(), torch.ones(2, 3), torch.tensor([1.0, 0.0])
    updates: list[Record] = [
        *(Delta(delta={"w": torch.ones(2, 3), "b": torch.zeros(n)}) for n in (3, 3, 30)),
        *(Delta(delta={"w": torch.ones(2, 3)}, more=more) for more in (None, {}, {"a": 0.5})),
        Delta(delta={"w": one, "b": one}),  # which travels once
        Delta(delta={"w": one.half()}),
        Masked(delta={"w": torch.ones(2)}, mask={"w": mask}),
        Masked(delta={"w": torch.ones(2)}, mask={"w": 1 - 0 * mask}),
    ]
    for place, update in enumerate(updates * 2):
        seat, n = 7 * place, 10 ** (place % 3)
        score = Score(n=n, n_correct=0, loss_sum=place / 3, loss_weight=None)
        outcome = Outcome[Any](seat=seat, kind="train", n_samples=n, train=score, figures={'\u00e9"': place / 7})
        made = Contribution[Any](seat=seat, n_samples=n, update=update)
        assert sizes.of(outcome, made) == answer_bytes(outcome, made), place
