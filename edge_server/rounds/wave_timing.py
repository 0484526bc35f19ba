"""A wave on the simulated clock: which answers come in time, how long the edge waits, what each visit costs.

A visit is one exchange: the order goes down, the device works, its answer with the update goes up. An algorithm with
reports needs two: the first brings the report; the second begins when the edge has decided, at the same instant for
all seats, and brings the updates that it admitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.wave import AgentReplies, Cutoff, Dispatch, Refusal, WaveDecision
from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.hooks import Verdict
from shared.federation.messages import Outcome
from shared.simulation.cost_model import Cost, LinkUse


@dataclass(frozen=True)
class VisitCost:
    """The simulated cost of a visit and the bytes that it moved; `report_bytes` of them went up before the verdict."""

    cost: Cost = field(default_factory=Cost)
    use: LinkUse = field(default_factory=LinkUse)
    report_bytes: int = 0


@dataclass(frozen=True)
class WaveTiming:
    """The timing of a wave whose agents have answered."""

    clock: EdgeClock
    agents: AgentClient
    ctx: Context
    dispatch: Dispatch
    replies: AgentReplies
    _first_costs: dict[int, Cost] = field(default_factory=dict, init=False, repr=False)

    @property
    def _refusal_cutoff(self) -> Cutoff:
        """The cutoff by which answers are refused; with `clock: real` the wall clock has refused them already."""
        return self.dispatch.cutoff if self.ctx.spec.clock == "simulated" else Cutoff()

    # ---- in time or not

    def decide(self) -> WaveDecision:
        """Refuses the answers that are not in time; admits the held updates of all others."""
        outcomes = self.replies.outcomes
        arrivals = {
            s: self._first_exchange_cost(s).simulated_s for s, found in outcomes.items() if found.kind != "evaluate"
        }
        succeeded = {seat: s for seat, s in arrivals.items() if outcomes[seat].failure is None}
        refusals = self._refusal_cutoff.refusals(succeeded)
        answered_s = self._answered_s(arrivals, self._refusal_cutoff.enough_s(succeeded))
        for seat in arrivals.keys() - succeeded.keys():  # the news of a failure is waited for no longer than an update
            if arrivals[seat] > answered_s:
                refusals[seat] = Refusal("late", answered_s)
        if self.ctx.spec.late == "next_round":
            late = [s for s, found in refusals.items() if found.reason == "late" and outcomes[s].held_bytes]
            refusals |= {seat: Refusal("late", None) for seat in late}
        refused = dict.fromkeys(self.dispatch.cutoff.too_late(self.dispatch.tasks), Refusal("late", 0.0)) | refusals
        held = (seat for seat, found in sorted(outcomes.items()) if found.held_bytes and seat not in refused)
        return WaveDecision(answered_s, refused, frozenset(refused), tuple(held))

    def _answered_s(self, arrivals: Mapping[int, float], enough_s: float | None) -> float:
        """When enough answers have come, or all; if one never comes, when the cutoff closes, where there is one."""
        if enough_s is not None:
            return enough_s
        closes_s, dropped = self.dispatch.cutoff.closes_s, self.dispatch.faults.dropped
        drops = [self._cost_until_drop(seat).simulated_s for seat in dropped]
        if self.ctx.spec.clock == "real":  # whoever has answered was in time, and a drop is known when it happens
            overdue = any(self.dispatch.tasks[seat].kind != "evaluate" for seat in self.replies.overdue)
            known = [*arrivals.values(), *(min(drop_s, closes_s) for drop_s in drops)]
            return max([*known, *([closes_s] if overdue else [])], default=0.0)
        last_s = max([*arrivals.values(), *drops], default=0.0)
        return closes_s if closes_s < math.inf and (drops or last_s > closes_s) else last_s

    def admit(self, decision: WaveDecision, verdicts: Mapping[int, Verdict]) -> WaveDecision:
        """The decision after the algorithm's verdicts on the reports: refuses admitted updates that come too late."""
        admitted = sorted(seat for seat, verdict in verdicts.items() if verdict.upload)
        uploads = {seat: self._upload_use(seat) for seat in admitted}
        requested = replace(decision, verdicts=verdicts, uploads=uploads)
        ends_s = {seat: self.cost_of_visit(requested, seat).cost.simulated_s for seat in admitted}
        refusal = Refusal("late", self.dispatch.cutoff.deadline_s)
        late = {seat: refusal for seat in admitted if ends_s[seat] > self._refusal_cutoff.deadline_s}
        refused = {**decision.refused, **late}
        return replace(requested, refused=refused, admitted=tuple(seat for seat in admitted if seat not in refused))

    def _upload_use(self, seat: int) -> LinkUse:
        """The bytes of the second exchange; an edge's own worker has no link."""
        if seat not in self.replies.links:
            return LinkUse()
        down, up = self.agents.upload_order_bytes(self.dispatch.wave_id, seat), self.replies.outcomes[seat].held_bytes
        return LinkUse(down_bytes=down, up_bytes=up)

    # ---- what it cost

    def duration_s(self, decision: WaveDecision) -> float:
        """How long the wave took: until the answers, and then the updates that the edge requested, have come."""
        late, failed = decision.refused.keys() | self.replies.overdue, self.replies.failed()
        requested = [seat for seat in decision.uploads if seat in late or seat not in failed]
        deadline_s = self.dispatch.cutoff.deadline_s
        ends_s = [deadline_s if s in late else self.cost_of_visit(decision, s).cost.simulated_s for s in requested]
        return max([decision.answered_s, *ends_s])

    def cost_of_visit(self, decision: WaveDecision, seat: int) -> VisitCost:
        """The cost of a visit; nothing if its agent failed, or the simulated device never began it.

        A refused or dropped visit is charged until it was broken off, and no longer than the edge waited, unless its
        update is for a later round.
        """
        dropped, use = self.dispatch.faults.dropped, self.replies.links.get(seat, LinkUse())
        if seat in dropped:
            flops = self.clock.dropped_flops(self.ctx, seat, self.dispatch.tasks[seat], dropped[seat])
            return VisitCost(*self.clock.broken_off(seat, self._cost_until_drop(seat), use, flops, decision.answered_s))
        if seat not in self.replies.outcomes:
            return VisitCost()
        outcome, refusal = self.replies.outcomes[seat], decision.refused.get(seat)
        until_s = math.inf if refusal is None or refusal.at_s is None else refusal.at_s
        flops = outcome.n_trained * self.clock.experiment.flops
        first = self._first_exchange_cost(seat)
        cost, done = self.clock.broken_off(seat, first, use, flops, until_s)
        report_bytes = done.up_bytes if outcome.report is not None else 0
        reported = self.clock.experiment.algorithm.reports and outcome.held_bytes
        if not reported or first.simulated_s > decision.answered_s:
            return VisitCost(cost, done, report_bytes)
        upload = LinkUse() if seat in self.replies.failed() else decision.uploads.get(seat, LinkUse())
        second = self.clock.upload_cost(self.ctx, seat, upload, decision.answered_s - first.simulated_s)
        cost_2, done_2 = self.clock.broken_off(seat, second, upload, 0.0, until_s - first.simulated_s)
        return VisitCost(cost + cost_2, done + done_2, report_bytes)

    def arrives_s(self, seat: int) -> float:
        """The simulated instant at which a visit's answer arrives."""
        return self.dispatch.at_s + self._first_exchange_cost(seat).simulated_s

    def drops_s(self, seat: int) -> float:
        """The simulated instant at which a device drops its visit."""
        return self.dispatch.at_s + self._cost_until_drop(seat).simulated_s

    def earliest_s(self, seat: int, down_bytes: int) -> float:
        """The earliest instant at which the answer of a visit can arrive, whose order has this size.

        It counts the samples that the visit's task has, unless the algorithm trains in a way of its own, and the bytes
        of the tensors that it sends.
        """
        task, algorithm = self.dispatch.tasks[seat], self.clock.experiment.algorithm
        n_trained = visit_estimates.samples_due(self.ctx, task, self.clock.seat(seat)) if algorithm.trains_once else 0
        use = LinkUse(down_bytes=down_bytes, up_bytes=self.ctx.model.link_use.up_bytes)
        least = Outcome[Any](seat=seat, kind=task.kind, n_trained=n_trained)
        return self.dispatch.at_s + self.clock.cost(self.ctx, seat, use, least).simulated_s

    def _first_exchange_cost(self, seat: int) -> Cost:
        """The cost of the whole first exchange of an answered visit; its decision and its record need it."""
        if seat not in self._first_costs:
            use = self.replies.links.get(seat, LinkUse())
            self._first_costs[seat] = self.clock.cost(self.ctx, seat, use, self.replies.outcomes[seat])
        return self._first_costs[seat]

    def _cost_until_drop(self, seat: int) -> Cost:
        """The cost of a dropped visit until the device drops it."""
        use, share = self.replies.links.get(seat, LinkUse()), self.dispatch.faults.dropped[seat]
        return self.clock.dropped_cost(self.ctx, seat, use, self.dispatch.tasks[seat], share)
