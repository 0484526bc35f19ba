"""Evaluation of checkpoints on the test sets, while the next round runs."""

from __future__ import annotations

import asyncio
import logging
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from cloud_server.runs.best import best_in
from cloud_server.runs.checkpoint import Checkpoint, PendingEvaluation
from cloud_server.runs.events import RunEvent
from cloud_server.runs.repository import RunRepository
from shared.core.number_sets import NumberSet
from shared.core.scores import ClassCounts, Score
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.groups import tests_by_group
from shared.federation.hooks import test_by_owner
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for
from shared.run_records.groups import GLOBAL_ON, MOST_TESTED, OWN_OF, RECEIVED_OF
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.rounds import EdgeRow, Evaluation, RoundDetail
from shared.run_records.runs import RunInfo
from shared.run_records.visits import VisitRow
from shared.runtime.compute_thread import ComputeThread

log = logging.getLogger(__name__)
Then = Callable[[dict[str, Evaluation] | None], None]
AHEAD = 2
"""At most this many evaluations of a run wait; then its rounds wait for them, so that states do not pile up."""


@dataclass
class _OfRun:
    """The evaluations of a run that have not ended, and the first error of those that have."""

    tasks: set[asyncio.Task[dict[str, Evaluation]]] = field(default_factory=set)
    error: BaseException | None = None


class Evaluator:
    """Evaluates the checkpoints of runs on a thread of its own.

    Args:
        repository: keeps the scores.
        thread: the evaluating thread; nothing else in the cloud uses the experiment's scratch model.
    """

    def __init__(self, repository: RunRepository, thread: ComputeThread) -> None:
        self.repository, self.thread = repository, thread
        self._saving = asyncio.Lock()  # two evaluations may end at once, but one round is the best
        self._runs: defaultdict[str, _OfRun] = defaultdict(_OfRun)

    async def submit(
        self,
        run_id: str,
        experiment: Experiment,
        ctx: Context,
        checkpoint: Checkpoint[Any],
        *,
        final: bool,
        then: Then | None = None,
    ) -> None:
        """Have a checkpoint evaluated; waits only while too many evaluations wait already.

        Args:
            run_id: the run.
            experiment: of the run.
            ctx: of the round.
            checkpoint: the checkpoint.
            final: whether it is that of the last round.
            then: is called with the scores once they are kept, or with None if the evaluation failed or was dropped.
        """
        own = self._runs[run_id]
        while len(own.tasks) >= AHEAD:
            await asyncio.wait(own.tasks, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._evaluate(run_id, experiment, ctx, checkpoint, final))
        own.tasks.add(task)
        task.add_done_callback(partial(self._ended, own, then))

    @property
    def n_waiting(self) -> int:
        """Evaluations that run or wait, of all runs."""
        return sum(len(own.tasks) for own in self._runs.values())

    def _ended(self, own: _OfRun, then: Then | None, task: asyncio.Task[dict[str, Evaluation]]) -> None:
        own.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        own.error = own.error or error
        if then is not None:
            then(None if task.cancelled() or error else task.result())

    async def _evaluate(
        self, run_id: str, experiment: Experiment, ctx: Context, checkpoint: Checkpoint[Any], final: bool
    ) -> dict[str, Evaluation]:
        scores = await self.thread.run(_scores, experiment, ctx, checkpoint.state, final)
        found = {name: experiment.scoring.evaluation(score, by_class=final) for name, score in scores.items()}
        event = _event(checkpoint.round_no, found, experiment.scoring.infos[0], final=final)
        best = best_in(found, checkpoint.round_no, experiment)
        async with self._saving:
            await self.repository.save_evaluation(run_id, checkpoint.round_no, found, best, event)
        return found

    async def finish(self, run_id: str) -> None:
        """Wait for all evaluations of a run; if one has failed since the last call, its error is raised here."""
        while tasks := self._runs[run_id].tasks:
            await asyncio.wait(tasks)
        error = self._runs.pop(run_id).error
        if error is not None:
            raise error

    async def drop(self, run_id: str | None = None) -> None:
        """Cancel all evaluations of a run, or of all runs, and forget earlier errors."""
        dropped = [self._runs.pop(run, _OfRun()) for run in ([run_id] if run_id else list(self._runs))]
        tasks = [task for own in dropped for task in own.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _scores(experiment: Experiment, ctx: Context, state: Any, final: bool) -> dict[str, Score]:
    """The algorithm's scores; of a global model those on the sets of `test_on` too, in the end by edge and by group."""
    trainer = trainer_for(
        experiment, Task(kind="evaluate"), experiment.population.test.indices[:0], experiment.population.test
    )
    hooks = experiment.algorithm.cloud
    scores = hooks.evaluate(ctx, state, trainer)
    if "global" not in scores:
        return scores
    model, prepare = hooks.models(ctx, state)["global"], partial(hooks.prepare, ctx, state)
    if experiment.population.validation:
        scores["validation"] = test_by_owner(trainer, model, experiment.population.validation, prepare)
    for name in experiment.spec.test_on:
        scores[f"global_on_{name}"] = test_by_owner(trainer, model, trainer.test_sets[name], prepare)
    if final:
        for edge in experiment.population.edges:
            parts = experiment.population.tests_at(edge, experiment.spec.client)
            if not any(len(part.samples) for part in parts):
                continue
            scores[f"global_at_edge_{edge.number}"] = test_by_owner(trainer, model, parts, prepare)
        for group, parts in tests_by_group(experiment.data, experiment.population).items():
            scores[f"{GLOBAL_ON}{group}"] = test_by_owner(trainer, model, parts, prepare)
    return scores


def _event(round_no: int, scores: dict[str, Evaluation], headline: MetricInfo, *, final: bool) -> RunEvent:
    """What is reported of an evaluation: the headline metric and its value of the global model, and all scores."""
    data = {name: score.model_dump(mode="json") for name, score in scores.items()}
    score = scores["global"].value(headline) if "global" in scores else None
    about = {"round_no": round_no, "metric": headline.label, "score": score}
    return RunEvent("round.evaluated", {**about, "evaluation": data, "final": final})


def evaluation_due(before: RunInfo, after: RunInfo) -> PendingEvaluation | None:
    """The evaluation of a checkpoint, None if none is due: after rounds, after simulated seconds, and in the end.

    Args:
        before, after: the run's document without and with the round.
    """
    spec, last = after.spec, after.rounds >= after.num_rounds
    if spec.eval_every_s is None:
        due = after.rounds % spec.eval_every == 0
    else:
        due = before.simulated_s // spec.eval_every_s < after.simulated_s // spec.eval_every_s
    return PendingEvaluation(final=last) if last or due else None


def over_clients(detail: RoundDetail, held_out: NumberSet, headline: MetricInfo) -> dict[str, Evaluation]:
    """Unweighted means over clients (seats, or edges) of the last evaluation: of the received and of the own model.

    Held-out seats have means of their own, and so have the clients of each group (a hospital, say) which have samples
    of no other. Clients without test samples do not count. On the sets of `test_on` rows have the headline metric only.
    What is counted by class is added up over clients.
    """
    rows = [row for row in detail.seats if row.outcome == "evaluated"]
    groups: dict[str, list[VisitRow | EdgeRow]] = {
        "clients": [*(row for row in rows if row.seat not in held_out), *detail.edges],
        "held_out": [row for row in rows if row.seat in held_out],
    }
    found: dict[str, Evaluation] = {}
    for name, members in groups.items():
        for which in ("received", "own"):
            tested = [row for row in members if getattr(row, f"{which}_loss") is not None]
            if tested:
                found[f"{name}_{which}"] = _mean_of(tested, which)
        for test_set in sorted({key for row in members for key in row.own_on}):
            values = [row.own_on[test_set] for row in members if test_set in row.own_on]
            mean = sum(values) / len(values)
            is_accuracy = headline.label == ACCURACY.label
            found[f"{name}_own_on_{test_set}"] = Evaluation(
                n=len(values),
                accuracy=mean if is_accuracy else None,
                metrics={} if is_accuracy else {headline.label: mean},
                by_class=_pooled(members, f"own_on_{test_set}"),
            )
    for group, alike in _by_group(groups["clients"]).items():
        for prefix, which in ((RECEIVED_OF, "received"), (OWN_OF, "own")):
            if tested := [row for row in alike if getattr(row, f"{which}_loss") is not None]:
                found[f"{prefix}{group}"] = _mean_of(tested, which)
    return found


def _by_group(rows: Sequence[VisitRow | EdgeRow]) -> dict[str, list[VisitRow | EdgeRow]]:
    """The clients of each group that have no samples of another; none if all are of one, or of too many."""
    found: dict[str, list[VisitRow | EdgeRow]] = {}
    for row in rows:
        if row.n_groups == 1:
            found.setdefault(row.groups[0], []).append(row)
    return found if 2 <= len(found) <= MOST_TESTED else {}


def _mean_of(rows: Sequence[VisitRow | EdgeRow], which: str) -> Evaluation:
    """The means over clients of the figures of one model; of a metric, over those for which it has a value."""
    accuracies = [value for row in rows if (value := getattr(row, f"{which}_accuracy")) is not None]
    values: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        for label, value in getattr(row, f"{which}_metrics").items():
            values[label].append(value)
    return Evaluation(
        n=len(rows),
        accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
        loss=sum(getattr(row, f"{which}_loss") for row in rows) / len(rows),
        metrics={label: sum(each) / len(each) for label, each in values.items()},
        by_class=_pooled(rows, which),
    )


def _pooled(rows: Sequence[VisitRow | EdgeRow], which: str) -> ClassCounts | None:
    """What the evaluations of clients count by class, all together."""
    tables = [row.by_class[which] for row in rows if which in row.by_class]
    return reduce(operator.add, tables) if tables else None
