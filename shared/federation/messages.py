"""The bodies that travel between tiers.

A seat is a virtual client of a run: its number, data and profile; any agent can host it. A visit is one seat's task:
receive a message, train, evaluate, answer. A wave is one dispatch of an edge, in which each selected seat is visited
once. An edge round is one or more waves that end in one aggregation at the edge. A round has one or more edge rounds
at each edge, and ends with an aggregation at the cloud.

Nothing in them depends on where a process runs (no address, agent or wall-clock time), so that the size of a body,
which the modelled links carry, is the same however seats are spread over agents.

They are generic in the algorithm's own records and decoded with the parametrised type, such as
`VisitOrder[algorithm.message_type]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from shared.core.bounds import Amount, Count, Detail, Figures, Label, VisitFigures
from shared.core.records import Record
from shared.core.scores import Score
from shared.core.tensor_records import Tensor
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
    """What a seat does in a visit.

    Attributes:
        kind: `train`; `collect` computes an update without training; `evaluate` makes no update.
        epochs, steps: length of the training, in one of both.
        batch_size: samples in a batch.
        samples: positions in the data set's training images, int64; None for the seat's own.
        evaluate: whether models are tested in this visit.
        phase: this seat's phase if it differs from the run's (a client that joined late).
    """

    kind: Kind = "train"
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: int = Field(default=32, ge=1)
    samples: Tensor | None = None
    evaluate: bool = True
    phase: str | None = None


class Failure(Record):
    """A lost contribution, as data in place of an exception.

    Attributes:
        reason: `unreachable`, `timeout`, `lost`, `offline`, `left_out`, `not_finite`, `out_of_bound`, `wire`, `error`,
            `cancelled`, `late` (with `clock: real`: no answer by the deadline); for simulated events `unavailable`
            (the device was off), `busy` (with a late update) or `dropped`.
        detail: the cause in words.
    """

    seat: int | None = None
    edge: int | None = None
    reason: Label
    detail: Detail


class Visit(Record):
    """One seat's visit within an order.

    Attributes:
        message: index of the seat's message in the order.
        base: version of the seat's state to start from, left by its last visit that counts; None before the first.
    """

    seat: int
    task: Task
    message: int
    base: Version | None = None


class WaveId(Record):
    """Identifies a wave of a run; an order sent again has the same one."""

    run_id: str
    round_no: int
    edge_round: int = 0
    wave: int = 0


class VisitOrder(Record, Generic[M]):
    """Edge to agent: the visits of one wave at this agent.

    Attributes:
        population: digest of the population that the edge derived.
        n_clients: training clients of the run (seats, or edges with `client: edge`).
        edge: number of the edge in the run.
        hold: the agent keeps the updates until an `UploadOrder` requests them, and answers without them.
        messages: the algorithm's messages, each for one or more of the visits.
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
    """The result of one visit, without its update.

    Attributes:
        n_samples: number of training samples, the client's weight in a mean.
        n_trained: samples passed through training in all epochs and in what else the algorithm learns; for a
            sub-network, the number on which the whole model could have trained with the same operations.
        n_steps: optimizer steps.
        train: score during training.
        received, own: scores of the received and the seat's own model on the seat's test samples.
        own_on: scores of the seat's own model on the test sets of the spec's `test_on`, by name.
        report: the algorithm's report, by which the edge admits or refuses the update.
        held_bytes: size of the answer that will carry the held update: the upload answer if the algorithm uses
            reports, otherwise this visit answer with the update included.
        fresh_state: the seat's state was missing and began anew, although the seat has visited before.
        figures: the algorithm's own numbers by name.
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
    figures: VisitFigures = Field(default_factory=dict)
    failure: Failure | None = None


class Contribution(Record, Generic[U]):
    """One seat's update with its weight in samples."""

    seat: int
    n_samples: Count
    update: U


class Uploads(Record, Generic[U]):
    """Single updates or their exact sum, whichever is smaller; the bits of any result are the same.

    Attributes:
        link_bytes: with a sum, the bytes of each seat's answer if it had sent its update alone.
    """

    contributions: tuple[Contribution[U], ...] = ()
    partial_sum: PartialSum | None = None
    link_bytes: dict[int, Count] = Field(default_factory=dict)


class VisitAnswer(Record, Generic[U, P]):
    """Agent to edge: the outcomes of an order's visits, and their updates unless the agent holds them."""

    outcomes: tuple[Outcome[P], ...]
    uploads: Uploads[U]


class UploadOrder(Record):
    """Edge to agent: send the held updates of these seats and drop the others of the wave.

    Attributes:
        late: seats whose updates count in a later round; these are sent singly.
    """

    stage: WaveId
    spec: ExperimentSpec
    edge: int
    seats: tuple[int, ...]
    late: tuple[int, ...] = ()


class UploadAnswer(Record, Generic[U]):
    """Agent to edge: the requested updates, and a failure for each that the agent no longer holds."""

    uploads: Uploads[U]
    late: tuple[Contribution[U], ...] = ()
    failures: tuple[Failure, ...] = ()


class RoundOrder(Record, Generic[B]):
    """Cloud to edge: one round at one edge.

    Attributes:
        population: digest of the population that the cloud derived.
        placement: digest of the edge's `EdgePlacement`, which is sent apart.
        kind: `evaluate` tests at every seat and trains at none.
        n_clients: training clients of the run (seats, or edges with `client: edge`).
        edge: number of the edge in the run.
        base: version of the edge's state to start from; None before its first round.
        bases: by seat, the version of its state that its last visit that counts has left.
        retired: seats that no longer take part, with the reason.
        clock_s: simulated seconds since the run began.
        broadcast: the algorithm's record from the cloud.
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
    clock_s: Annotated[float, Field(ge=0)]
    broadcast: B


class RoundAnswer(Record, Generic[U]):
    """Edge to cloud.

    Attributes:
        partial_sum: the exact sum of the seats' updates; or
        update: the edge's own update, which stands for `n_updates` updates with `n_samples` samples.
        lines: a record of each visit.
        retired: seats that the edge retired in this round, with the reason.
        bases: by seat, the version of its state that its last visit that counts has left.
        base: version of the edge's state after this round.
        received, own, own_on: scores at the edge if edges are the clients; see `Outcome`.
        simulated_s: simulated seconds of the edge rounds, without the link to the cloud.
        next_on_s: the simulated time at which the first unavailable device becomes available again.
        fresh_state: the edge's state was missing and began anew, although the edge has served this run before.
        collected_bytes, collected_j: of the samples that devices sent to the edge, where these travel.
        telemetry_bytes, telemetry_j: of the messages to the digital twins, where devices send some.
    """

    edge: int
    partial_sum: PartialSum | None = None
    update: U | None = None
    n_updates: Count = 0
    n_samples: Count = 0
    lines: tuple[VisitRecord, ...] = ()
    failures: tuple[Failure, ...] = ()
    retired: dict[int, Detail] = Field(default_factory=dict)
    bases: dict[int, Version] = Field(default_factory=dict)
    base: Version | None = None
    received: Score | None = None
    own: Score | None = None
    own_on: dict[str, Score] = Field(default_factory=dict)
    simulated_s: Amount = 0.0
    next_on_s: Amount | None = None
    fresh_state: bool = False
    figures: Figures = Field(default_factory=dict)
    collected_bytes: Annotated[Count, Field(exclude_if=lambda n: not n)] = 0
    collected_j: Annotated[Amount, Field(exclude_if=lambda joules: not joules)] = 0.0
    telemetry_bytes: Annotated[Count, Field(exclude_if=lambda n: not n)] = 0
    telemetry_j: Annotated[Amount, Field(exclude_if=lambda joules: not joules)] = 0.0


@dataclass(frozen=True)
class WireTypes:
    """The generic bodies, parametrised with one algorithm's records, as decoding needs them."""

    visit_order: type[Any]
    visit_answer: type[Any]
    upload_answer: type[Any]
    round_order: type[Any]
    round_answer: type[Any]


def wire_types(*, broadcast: type[Record], message: type[Record], update: type[Record], report: Any) -> WireTypes:
    """The types in which an algorithm's bodies are decoded; `report` is None if it has no reports."""

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
