"""Answers of a real edge, adapted so that the cloud takes them from others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from shared.federation.aggregation import PartialSum
from shared.federation.experiment import Experiment
from shared.federation.messages import RoundAnswer
from shared.storage.states import Version
from shared.wire import codec


class Recorded:
    """The answer of a real edge to a request of the cloud.

    Args:
        body: the encoded answer.
        made: the experiment of the run in which it was recorded.
        wanted: that of the run in which it is replayed, whose exact sums may have coarser steps.
    """

    def __init__(self, body: Path, made: Experiment, wanted: Experiment) -> None:
        raw = bytearray(body.read_bytes())  # compressed tensors stay compressed
        found = codec.decode(made.wire_types.round_answer, raw, model=made.shapes)
        answer: RoundAnswer[Any] = found
        if answer.partial_sum is not None:
            answer = answer.replace(partial_sum=_in_steps_of(answer.partial_sum, made, wanted))
        self.answer = answer

    def of(self, edge: int, round_no: int, seats: Iterable[int]) -> codec.Body:
        """The answer of another edge, whose devices are these; its tensors are shared.

        Raises:
            RuntimeError: it has another number of devices.
        """
        number = dict(zip(sorted({line.seat for line in self.answer.lines}), sorted(seats), strict=True))
        lines = tuple(line.replace(seat=number[line.seat]) for line in self.answer.lines)
        base = None if self.answer.base is None else Version(round_no)
        bases = {number[seat]: Version(round_no, *version[1:]) for seat, version in self.answer.bases.items()}
        return codec.encode(self.answer.replace(edge=edge, lines=lines, base=base, bases=bases))


def _in_steps_of(total: PartialSum, made: Experiment, wanted: Experiment) -> PartialSum:
    """The same sum in the steps of another run: whole numbers of them."""

    def scaled(name: str, tensor: torch.Tensor) -> torch.Tensor:
        by = wanted.fixed_point.exponent(name) - made.fixed_point.exponent(name)
        return (tensor * 2.0**by).round_()

    means = {
        key: part.replace(sums={name: scaled(name, tensor) for name, tensor in part.sums.items()})
        for key, part in total.means.items()
    }
    return total.replace(means=means)
