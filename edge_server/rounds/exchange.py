"""One exchange with the agents of a wave: takes their answers, checks each visit, and adds updates to the sum.

What an agent says of one visit costs that visit alone; what cannot be separated, as a sum, costs all visits in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from edge_server.rounds.reply_checks import check_size, check_uploads, check_visits
from edge_server.rounds.visit_limits import VisitLimits, check_sum, limits_of
from edge_server.rounds.wave import AgentReplies, Deadline, Dispatch, VisitRequest
from shared.core.errors import StrataError, WireError
from shared.core.tensor_records import copy_tensors
from shared.federation.aggregation import Accumulator, check_partial_sum
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import (
    Contribution,
    Failure,
    Outcome,
    RoundOrder,
    UploadAnswer,
    Uploads,
    VisitAnswer,
)
from shared.federation.update_checks import check_origin, clients_of
from shared.federation.visits.uploads import UploadBuilder, answer_bytes
from shared.simulation.cost_model import LinkUse


@dataclass(frozen=True)
class Exchange:
    """One exchange with the agents of a wave: its visits, or the uploads of held updates.

    Attributes:
        experiment: of the run.
        order: of the cloud.
        dispatch: the wave.
        replies: what the agents have answered so far.
        accumulator: sums the updates.
        deadline: with `clock: real`, when the edge stops waiting.
    """

    experiment: Experiment
    order: RoundOrder[Any]
    dispatch: Dispatch
    replies: AgentReplies
    accumulator: Accumulator
    deadline: Deadline
    _contexts: dict[str, Context] = field(default_factory=dict, init=False, repr=False)

    # ---- answers

    def take_own_visit(self, builder: UploadBuilder) -> None:
        """Takes the visit of the edge's own worker."""
        for outcome in builder.outcomes:
            self.replies.record(outcome)
        if builder.hold:
            self.replies.held = {item.seat: item for item in builder.singles}
        else:
            uploads = builder.uploads()
            self.add_singles(uploads.contributions)
            self._add_sum(uploads)

    def take_visits(
        self,
        requests: Sequence[VisitRequest],
        answer: VisitAnswer[Any, Any],
        n_bytes: int,
        down_bytes: Callable[[VisitRequest], int],
    ) -> None:
        """Takes an agent's answer to the order for some visits.

        Args:
            requests: the visits.
            answer: of the agent.
            n_bytes: size of the answer's body.
            down_bytes: returns the size of a request, as if it went to its seat alone.

        Raises:
            StrataError: all these visits are lost.
        """
        hold, reports = self.dispatch.hold, self.experiment.algorithm.reports
        check_visits(answer, {item.seat: item.task.kind for item in requests}, hold=hold, reports=reports)
        if answer.uploads.partial_sum is not None and self.experiment.spec.sync.devices.asynchronous:
            raise WireError("updates of asynchronous devices come singly, not as a sum", field="uploads")
        singles = {item.seat: item for item in answer.uploads.contributions}
        limits = {item.seat: self._limits(item.seat) for item in requests}
        if answer.uploads.partial_sum is not None:  # refused as a whole, before any of its visits is recorded
            for outcome in answer.outcomes:
                if outcome.seat in answer.uploads.link_bytes:
                    limits[outcome.seat].check(outcome)
            behind = [limits[seat] for seat in sorted(answer.uploads.link_bytes)]
            check_sum(answer.uploads.partial_sum, answer.uploads.link_bytes, behind, n_bytes)
        refused = set()
        for request, outcome in zip(requests, answer.outcomes, strict=True):
            checked = self._checked(outcome, limits[outcome.seat])
            if checked.failure is not None and outcome.failure is None:
                refused.add(outcome.seat)
            self.replies.record(checked)
            up = answer.uploads.link_bytes.get(outcome.seat) or answer_bytes(outcome, singles.get(outcome.seat))
            if checked.held_bytes and not reports:
                up = checked.held_bytes  # it sends its update at once; only our services hold it back
            self.replies.links[outcome.seat] = LinkUse(down_bytes=down_bytes(request), up_bytes=up)
        if hold:
            return
        singles_left = [item for item in answer.uploads.contributions if item.seat not in refused]
        if self.experiment.spec.sync.devices.asynchronous:
            return self._keep(singles_left)
        self.add_singles(singles_left)
        self._add_sum(answer.uploads)

    def take_uploads(self, seats: Sequence[int], late: Sequence[int], answer: UploadAnswer[Any], n_bytes: int) -> None:
        """Takes an agent's answer to the order for the held updates of some seats, of which some are late.

        Raises:
            StrataError: all these updates are lost.
        """
        check_uploads(answer, [seat for seat in seats if seat not in late], [seat for seat in late if seat in seats])
        if answer.uploads.partial_sum is not None:
            behind = [self._limits(seat) for seat in sorted(answer.uploads.link_bytes)]
            check_sum(answer.uploads.partial_sum, answer.uploads.link_bytes, behind, n_bytes)
        self.replies.failures += [failure.replace(edge=self.order.edge) for failure in answer.failures]
        for item in answer.late:
            with self._fail_seat_on_error(item.seat):
                self._check_size(item)
                self._check_single(item)
                self.replies.late[item.seat] = copy_tensors(item)
        self.add_singles(answer.uploads.contributions, announced=True)
        self._add_sum(answer.uploads)

    # ---- visits

    def _limits(self, seat: int) -> VisitLimits:
        """What the report of a seat's visit may say."""
        collected = self.experiment.seat_in(seat, self.dispatch.wave_id.round_no)
        return limits_of(self.experiment, self._ctx(seat), self.dispatch.tasks[seat], collected)

    def _checked(self, outcome: Outcome[Any], limits: VisitLimits) -> Outcome[Any]:
        """The outcome, its failure at this edge; in place of one with false claims, a failure."""
        edge = self.order.edge
        try:
            limits.check(outcome)
        except StrataError as error:
            failure = Failure(seat=outcome.seat, edge=edge, reason=error.code, detail=error.detail)
            return Outcome[Any](seat=outcome.seat, kind=outcome.kind, failure=failure)
        if outcome.failure is None:
            return outcome
        return outcome.replace(failure=outcome.failure.replace(edge=edge))

    # ---- updates

    def add_singles(self, items: Sequence[Contribution[Any]], *, announced: bool = False) -> None:
        """Adds updates to the sum; one that cannot be added is a failure of its seat alone.

        `announced`: whether their sizes were announced.
        """
        for item in items:
            with self._fail_seat_on_error(item.seat):
                if announced:
                    self._check_size(item)
                self._check_single(item)
                self.accumulator.add(item.update, item.n_samples)
                self.replies.used.add(item.seat)

    def _keep(self, items: Sequence[Contribution[Any]]) -> None:
        """Keeps updates that count later; their tensors leave the memory of the answer."""
        for item in items:
            with self._fail_seat_on_error(item.seat):
                self._check_single(item)
                self.replies.held[item.seat] = copy_tensors(item)

    def count(self, seat: int, accumulator: Accumulator, factor: int) -> None:
        """Adds a kept update to a sum, its weight multiplied by a factor; one that cannot be added is a failure."""
        item = self.replies.held.pop(seat, None)
        if item is not None:
            with self._fail_seat_on_error(seat):
                accumulator.add(item.update, item.n_samples, factor=factor)
                self.replies.used.add(seat)

    def _add_sum(self, uploads: Uploads[Any]) -> None:
        if uploads.partial_sum is None:
            return
        accumulator = self.accumulator
        kind, fixed_point = accumulator.kind, accumulator.fixed_point
        stand_in = check_partial_sum(uploads.partial_sum, kind, fixed_point, model=accumulator.model)
        self._check_update(sorted(uploads.link_bytes), stand_in)
        accumulator.merge(uploads.partial_sum, take=True, checked=True)
        self.replies.used |= uploads.link_bytes.keys()

    def _check_size(self, item: Contribution[Any]) -> None:
        check_size(item, self.replies.outcomes[item.seat], reports=self.experiment.algorithm.reports)

    def _check_single(self, item: Contribution[Any]) -> None:
        self._limits(item.seat).check_weight(item.n_samples)
        self._check_update([item.seat], item.update)

    def _check_update(self, seats: Sequence[int], update: Any) -> None:
        """Checks that an update, or the stand-in of a sum, can come from the visits of these seats."""
        ctx = self._ctx(seats[0])
        check_origin(self.experiment, ctx, update, clients_of(ctx, seats))

    def _ctx(self, seat: int) -> Context:
        """The context of a seat's visit; what all visits of a phase share is made once, since it counts all seats."""
        wave_id, order, phase = self.dispatch.wave_id, self.order, self.dispatch.tasks[seat].phase or self.order.phase
        if phase not in self._contexts:
            ctx = self.experiment.ctx(
                phase=phase, round_no=wave_id.round_no, n_clients=order.n_clients, edge=order.edge
            )
            self._contexts[phase] = ctx.at(edge_round=wave_id.edge_round, wave=wave_id.wave)
        return self._contexts[phase].at(seat=seat)

    @contextmanager
    def _fail_seat_on_error(self, seat: int) -> Iterator[None]:
        """Converts an error in the block into a failure of one seat."""
        try:
            yield
        except StrataError as error:
            self.replies.fail([seat], self.order.edge, error.code, error.detail)
