"""The sizes of a run's sub-networks, as an algorithm reports them among the cloud's figures of a round.

Two figures are reported by layer, `n_weights` and `multiply_adds`: means over clients, and under `supernet` those of
the whole network. Biases and batch-norm are not counted, of operations those of passing one sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shared.plots.history import RunHistory
from shared.plots.picture import Axis, Bars, Lines, Picture, Series
from shared.run_records.rounds import RoundInfo

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
        """The sub-networks' mean share of the whole network."""
        return sum(self.clients[figure].values()) / sum(self.supernet[figure].values())

    def shares(self, figure: Figure) -> dict[str, float]:
        """The same by layer, from input to output."""
        return {layer: n / self.supernet[figure][layer] for layer, n in self.clients[figure].items()}


def sizes_of(rounds: Sequence[RoundInfo]) -> list[Sizes]:
    """The sizes of all rounds that report them."""
    reported = [(row.round_no, row.figures.get("cloud", {})) for row in rounds if row.kind == "train"]
    return [
        Sizes(round_no, {name: found[name] for name in found["supernet"]}, found["supernet"])
        for round_no, found in reported
        if "supernet" in found
    ]


def sub_networks(history: RunHistory) -> Sequence[Picture]:
    """The sub-networks' share of the supernet: by round above, by layer in the last round below."""
    sizes = sizes_of(history.rounds)
    if not sizes:
        return ()
    figures: tuple[tuple[Figure, str], ...] = (("n_weights", "weights"), ("multiply_adds", "multiply-adds"))
    share = Axis(label="share of the supernet", unit="share", from_zero=True)
    x = tuple(float(each.round_no) for each in sizes)
    by_round = tuple(
        Series(name=label, x=x, y=tuple(each.share(figure) for each in sizes), colour=at)
        for at, (figure, label) in enumerate(figures)
    )
    last = sizes[-1]
    by_layer = tuple(
        Series(name=label, y=tuple(last.shares(figure).values()), colour=at)
        for at, (figure, label) in enumerate(figures)
    )
    panels = (
        Lines(x=Axis(label="round", whole=True), y=share, series=by_round),
        Bars(
            x=Axis(label=f"layer, mean over clients in round {last.round_no}"),
            y=share,
            names=tuple(last.clients["n_weights"]),
            series=by_layer,
        ),
    )
    return (
        Picture(
            name="sub_networks", title=f"{history.info.name} ({history.info.algorithm}): sub-networks", panels=panels
        ),
    )
