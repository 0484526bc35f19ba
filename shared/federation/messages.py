"""The bodies that travel between tiers.

They hold nothing that depends on where a process runs (no address, no agent, no wall-clock time): so the size of a
body, which is what a link of the modelled system carries, is the same however seats are spread over agents.

Generic in the algorithm's own records; decode with the parametrised type (`VisitOrder[algorithm.message]`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from shared.core.records import Count, NotNegative, Record, Tensor
from shared.core.scores import Score
from shared.federation.aggregation import PartialSum
from shared.run_records.visits import VisitRecord
from shared.spec.experiment import ExperimentSpec
from shared.storage.states import Version

B = TypeVar("B")
M = TypeVar("M")
U = TypeVar("U")
P = TypeVar("P")

Kind = Literal["train", "collect", "evaluate"]


class Task(Record):
    """What a seat is to do in a visit.

    Attributes:
        kind: `train`; `collect` computes an update without training; `evaluate` sends none.
        epochs, steps: how long to train, one of both.
        batch_size: samples a batch.
        samples: positions in the data set's training images, int64; None = the seat's own.
        evaluate: whether the models are tested in this visit.
        phase: where this seat is in another phase than the run (a client that came late).
    """

    kind: Kind = "train"
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: int = Field(default=32, ge=1)
    samples: Tensor | None = None
    evaluate: bool = True
    phase: str | None = None


class Failure(Record):
    """A contribution that was lost. Data, not an exception.

    `reason`: `unreachable`, `timeout`, `lost`, `offline`, `left_out`, `not_finite`, `out_of_bound`, `wire`, `error`,
    `cancelled`, `late` (with `clock: real`: no answer by the deadline); of the model's own events `unavailable` (the
    device was off), `busy` (with a late update) and `dropped`.
    """

    seat: int | None = None
    edge: int | None = None
    reason: str
    detail: str


class Visit(Record):
    """One seat's visit within an order.

    Attributes:
        message: position in the order's messages.
        base: the version of the seat's state to start from: that of its last visit that counts, None for none.
    """

    seat: int
    task: Task
    message: int
    base: Version | None = None


class WaveId(Record):
    """Which wave of which run: the key under which a tier answers the same thing twice."""

    run_id: str
    round_no: int
    edge_round: int = 0
    wave: int = 0


class VisitOrder(Record, Generic[M]):
    """Edge to agent: the visits of one wave at this agent.

    Attributes:
        population: digest of the population that the edge derived.
        edge: number of the home edge.
        hold: answer with reports only and hold the updates until they are asked for.
    """

    stage: WaveId
    spec: ExperimentSpec
    population: str
    phase: str
    n_clients: int
    edge: int
    hold: bool
    messages: tuple[M, ...]
    visits: tuple[Visit, ...]


class Outcome(Record, Generic[P]):
    """What one visit came to.

    Attributes:
        n_samples: training samples, its weight in a mean.
        n_trained: samples passed through training, all epochs counted, and what was learned besides; of sub-networks
            as many as the run's model could have trained on in their operations.
        train: loss and hits while training.
        received, own: the model received and the seat's own, on the seat's test samples.
        own_on: the seat's own on the further test sets of the spec, by name.
        held_bytes: of the answer that brings its update, where that is held back: of an upload's answer after a
            report, else of this answer as the modelled device sends it, with its update.
        fresh_state: the seat began anew, though it has visited before.
    """

    seat: int
    kind: Kind
    n_samples: Count = 0
    n_trained: Count = 0
    n_steps: Count = 0
    train: Score | None = None
    received: Score | None = None
    own: Score | None = None
    own_on: dict[str, Score] = Field(default_factory=dict)
    report: P | None = None
    held_bytes: Count = 0
    fresh_state: bool = False
    figures: dict[str, float] = Field(default_factory=dict)
    failure: Failure | None = None


class Contribution(Record, Generic[U]):
    """One seat's update with its weight."""

    seat: int
    n_samples: Count
    update: U


class Uploads(Record, Generic[U]):
    """Updates, singly or as their exact sum, whichever is smaller; the bits of any result are the same.

    `link_bytes` says, beside a sum, how many bytes each seat's own answer would have had.
    """

    contributions: tuple[Contribution[U], ...] = ()
    partial_sum: PartialSum | None = None
    link_bytes: dict[int, Count] = Field(default_factory=dict)


class VisitAnswer(Record, Generic[U, P]):
    """Agent to edge."""

    outcomes: tuple[Outcome[P], ...]
    uploads: Uploads[U]


class UploadOrder(Record):
    """Edge to agent: send the held updates of these seats, drop the others of this wave.

    `late` are seats whose updates are for another round: they come singly.
    """

    stage: WaveId
    spec: ExperimentSpec
    edge: int
    seats: tuple[int, ...]
    late: tuple[int, ...] = ()


class UploadAnswer(Record, Generic[U]):
    """Agent to edge: what was asked for, failures for what is no longer held."""

    uploads: Uploads[U]
    late: tuple[Contribution[U], ...] = ()
    failures: tuple[Failure, ...] = ()


class RoundOrder(Record, Generic[B]):
    """Cloud to edge: one round of one home.

    Attributes:
        seating: digest of the seating (which seats are taken, and where they sit), sent apart.
        kind: `evaluate` visits every seat and trains nobody.
        base: version of the edge's state to start from.
        bases: by seat, the version of its state of the last visit that counts.
        retired: seats that take part no more, with the reason.
        clock_s: simulated seconds since the run began.
    """

    run_id: str
    round_no: int
    spec: ExperimentSpec
    population: str
    placement: str
    phase: str
    kind: Literal["train", "evaluate"]
    n_clients: int
    edge: int
    base: Version | None
    bases: dict[int, Version]
    retired: dict[int, str]
    clock_s: NotNegative
    broadcast: B


class RoundAnswer(Record, Generic[U]):
    """Edge to cloud.

    Attributes:
        folded: exact sums of the seats' updates, or
        update: the edge's own update, standing for `n_updates` with `n_samples` together.
        bases: by seat, the version left behind by its last visit that counts.
        base: version of the edge's state left behind.
        score: the edge's own evaluation, where the edge is the client.
        simulated_s: of the edge rounds, without the link to the cloud.
        next_on_s: the simulated instant at which the first of the devices that were off is there again.
        fresh_state: the edge began anew, though it has served this home before.
    """

    edge: int
    partial_sum: PartialSum | None = None
    update: U | None = None
    n_updates: Count = 0
    n_samples: Count = 0
    lines: tuple[VisitRecord, ...] = ()
    failures: tuple[Failure, ...] = ()
    retired: dict[int, str] = Field(default_factory=dict)
    bases: dict[int, Version] = Field(default_factory=dict)
    base: Version | None = None
    received: Score | None = None
    own: Score | None = None
    own_on: dict[str, Score] = Field(default_factory=dict)
    simulated_s: NotNegative = 0.0
    next_on_s: NotNegative | None = None
    fresh_state: bool = False
    figures: dict[str, Any] = Field(default_factory=dict)


class SeatAddress(Record):
    """Where a seat sits: the agent that hosts it."""

    agent: str
    url: str


@dataclass(frozen=True)
class WireTypes:
    """The bodies of one algorithm, parametrised with its own records, for decoding."""

    visit_order: type[Any]
    visit_answer: type[Any]
    upload_answer: type[Any]
    round_order: type[Any]
    round_answer: type[Any]


def wire_types(*, broadcast: type[Record], message: type[Record], update: type[Record], report: Any) -> WireTypes:
    """The types in which an algorithm's bodies are decoded; without a report any would do, none comes."""

    def of(generic: Any, *args: Any) -> type[Any]:
        parametrised: type[Any] = generic[args]
        return parametrised

    return WireTypes(
        visit_order=of(VisitOrder, message),
        visit_answer=of(VisitAnswer, update, report or Any),
        upload_answer=of(UploadAnswer, update),
        round_order=of(RoundOrder, broadcast),
        round_answer=of(RoundAnswer, update),
    )


class EdgePlacement(Record):
    """Which taken seats visit a home in a round, and where they sit. Its digest stands in the round's order.

    `absent` are those of them whose agent is not heard, `offline` those whose agent was taken offline: they are
    chosen like any other, and their visits fail. `profiles` are those of the seats' agents, where the
    spec asks for them.
    """

    run_id: str
    edge: int
    addresses: dict[int, SeatAddress]
    absent: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    profiles: dict[int, str] = Field(default_factory=dict)
