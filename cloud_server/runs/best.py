"""The best round of a run: by which values rounds are compared, and where the best one's state is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from cloud_server.runs.checkpoint import reading
from shared.core.records import Record
from shared.federation.experiment import Experiment
from shared.run_records.metrics import MetricInfo, metric_named
from shared.run_records.rounds import Evaluation
from shared.run_records.runs import BestModel, RunInfo
from shared.spec.ends import Stop
from shared.spec.experiment import ExperimentSpec
from shared.storage import redis_keys
from shared.storage.key_value import Batch, Store

WORDS = {"validation": "the validation part", "test": "the test set"}


class Measure(NamedTuple):
    """A metric on the samples by which rounds are compared."""

    metric: MetricInfo
    on: Literal["validation", "test"]

    def of(self, scores: Mapping[str, Evaluation] | None) -> float | None:
        """The value in the evaluations of a round."""
        found = (scores or {}).get("validation" if self.on == "validation" else "global")
        return found.value(self.metric) if found else None


def measure_of(stop: Stop | None, spec: ExperimentSpec, metrics: tuple[MetricInfo, ...]) -> Measure:
    """What ends a run: the metric that `stop` names or the headline, on the validation part if the run has one."""
    metric = metric_named(stop.metric if stop else None, metrics)
    if stop is not None and stop.on is not None:
        return Measure(metric, stop.on)
    return Measure(metric, "test" if spec.validation is None else "validation")


def best_in(scores: Mapping[str, Evaluation], round_no: int, experiment: Experiment) -> BestModel | None:
    """The round as the best one, if it is the only one; None if the run does not compare rounds.

    It follows from the spec, and not from a `stop` that a user gives later, so that a run has one measure.
    """
    spec, stop = experiment.spec, experiment.spec.stop
    patient = stop if stop is not None and stop.patience is not None else None
    if (spec.validation is None and patient is None) or experiment.algorithm.headline != "global model":
        return None
    metric, on = measure = measure_of(patient, spec, experiment.scoring.infos)
    value = measure.of(scores)
    return None if value is None else BestModel(round_no=round_no, metric=metric, value=value, on=on)


def better(one: BestModel | None, other: BestModel | None) -> BestModel | None:
    """The better of two rounds."""
    return other if one is None or (other is not None and other.beats(one)) else one


class StoredBest(Record):
    """The best round so far, and the digest of the file with its checkpoint."""

    model: BestModel
    state: str


async def stored_best(store: Store, run_id: str) -> StoredBest | None:
    """The best round of a run so far; None before its first evaluation, or if it compares none.

    Raises:
        RunUnreadable: it is of another version, or damaged.
    """
    found = await store.get(redis_keys.cloud_best(run_id))
    with reading(run_id, "the best round"):
        return None if found is None else StoredBest.model_validate_json(found)


async def with_best(store: Store, batch: Batch, found: BestModel | None, run_id: str) -> Batch:
    """A batch that also stores a round as the best one, if it is better than that in the store.

    Of equal rounds the first is the best, so that neither the order of evaluations nor a repetition matters. The state
    is the one that was due to be evaluated; of a round that was not due, the run's present one.
    """
    if found is None:
        return batch
    due = await store.get(redis_keys.cloud_due(run_id, found.round_no))
    state = json.loads(due)["state"] if due else (await store.get(redis_keys.cloud_run_state(run_id)) or b"").decode()
    known = await stored_best(store, run_id)
    if not state or better(known.model if known else None, found) is not found:
        return batch
    return batch.put(redis_keys.cloud_best(run_id), StoredBest(model=found, state=state).model_dump_json().encode())


def waited(values: list[tuple[int, float]], stop: Stop, metric: MetricInfo, since: int) -> tuple[int, int]:
    """How many evaluations in a row after the round `since` were not better, and the round of the best value before.

    Args:
        values: by round, in order.
        stop: its `min_delta` is by how much more a value has to be better.
        metric: whose direction counts.
        since: the round after which `stop` was given.
    """
    best, n = values[0], 0
    for round_no, value in values[1:]:
        gain = value - best[1] if metric.higher_is_better else best[1] - value
        if gain > stop.min_delta:
            best, n = (round_no, value), 0
        elif round_no > since:
            n += 1
    return n, best[0]


def patience_over(values: list[tuple[int, float]], info: RunInfo, measure: Measure) -> str | None:
    """What is said of a run whose patience is over, None if it is not."""
    stop = info.stop
    if stop is None or stop.patience is None or not values:
        return None
    n, round_no = waited(values, stop, measure.metric, info.stop_from)
    if n < stop.patience:
        return None
    value = dict(values)[round_no]
    word = info.spec.sync.round_word
    label = f"{measure.metric.label} on {WORDS[measure.on]}"
    return f"{label} has not become better than {value:.4g} after {word} {round_no} in {n} evaluations (stop.patience)"
