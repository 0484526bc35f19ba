"""How large the sub-networks of a run are, as an algorithm tells in the cloud's figures of a round.

Two figures are told by layer, `n_weights` and `multiply_adds`: means over clients, and under `supernet` those of the
whole network. Biases and batch-norm are not counted, of operations those of passing one sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shared.api import RoundInfo

Figure = Literal["n_weights", "multiply_adds"]


@dataclass(frozen=True)
class Sizes:
    """Sizes in one round.

    Attributes:
        round_no: which.
        clients: by figure and layer, the mean over clients.
        supernet: by figure and layer, of the whole network.
    """

    round_no: int
    clients: Mapping[str, Mapping[str, float]]
    supernet: Mapping[str, Mapping[str, float]]

    def share(self, figure: Figure) -> float:
        """What sub-networks have of the whole one."""
        return sum(self.clients[figure].values()) / sum(self.supernet[figure].values())

    def shares(self, figure: Figure) -> dict[str, float]:
        """The same by layer, from input to output."""
        return {layer: n / self.supernet[figure][layer] for layer, n in self.clients[figure].items()}


def sizes_of(rounds: Sequence[RoundInfo]) -> list[Sizes]:
    """The sizes of all rounds that tell of them."""
    told = [(row.round_no, row.figures.get("cloud", {})) for row in rounds if row.kind == "train"]
    return [
        Sizes(round_no, {name: found[name] for name in found["supernet"]}, found["supernet"])
        for round_no, found in told
        if "supernet" in found
    ]
