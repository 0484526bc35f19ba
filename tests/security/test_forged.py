"""An answer with forged values of clients costs one contribution; the run continues, and no state is corrupted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.algorithms.fedmix import Mash
from shared.core.scores import Score
from shared.federation.messages import VisitAnswer
from shared.federation.registry import load_algorithm
from shared.run_records.visits import FailureInfo
from shared.training.data.channel_statistics import Statistics
from tests.federation import AGENT_PORT, Tamper
from tests.security.test_false_claims import Forge, changing
from tests.shared.algorithms.layouts import run

SPEC: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 60, "n_test": 20},
    "num_devices": 2,
    "num_edges": 1,
    "num_rounds": 2,
}


def forging(algorithm: str, forge: Forge) -> Tamper:
    """Replaces the first answer of the first agent, which hosts one device."""
    kind: Any = VisitAnswer
    return changing(kind[load_algorithm(algorithm).update, Any], AGENT_PORT, "/visits", forge)


def with_field(field: str, change: Callable[[Any, str], Any]) -> Forge:
    """Replaces a field of the update; `change` makes the value of the true one and the client's id."""

    def forge(reply: Any) -> Any:
        (item,) = reply.uploads.contributions
        made = change(getattr(item.update, field), f"device-{item.seat}")
        forged = item.model_copy(update={"update": item.update.model_copy(update={field: made})})
        return reply.model_copy(update={"uploads": reply.uploads.model_copy(update={"contributions": (forged,)})})

    return forge


async def failure_of(tmp_path: Path, algorithm: str, forge: Forge) -> FailureInfo:
    """Returns the failure that one forged answer causes, in a run that completes and loses nothing else."""
    spec = {**SPEC, "algorithm": algorithm}
    done = await run(tmp_path, spec, tamper=forging(algorithm, forge), agent_devices=(1, 1), n_edges=1)
    first, *later = done.rounds
    assert [row.outcome for row in first.seats].count("failed") == 1
    assert [detail.n_used for detail in later] == [2] * len(later)
    assert [detail.failures for detail in later] == [()] * len(later)
    (failure,) = first.failures
    assert failure.seat in {row.seat for row in first.seats if row.outcome == "failed"}
    return failure


def wrong_mash(_: Any, client: str) -> dict[str, Mash]:
    return {client: Mash(images=torch.zeros(1, 1, 9, 9), labels=torch.full((1, 10), 0.1))}


def wrong_channels(_: Any, client: str) -> dict[str, Statistics]:
    return {client: Statistics(n=9, sums=(9,) * 3, squares=(9,) * 3)}


def values_of_another_client(sent: Any, client: str) -> dict[str, Any]:
    return {"device-0" if client == "device-1" else "device-1": sent[client]}


def bias_alone(sent: Any, _: str) -> dict[str, Any]:
    return {"head.bias": sent["head.bias"]}


@pytest.mark.parametrize(
    ("algorithm", "field", "change", "message"),
    [
        ("fedmix", "averages", wrong_mash, r"averages of device-\d: 1 of images \(1, 9, 9\)"),
        ("fedmix", "averages", values_of_another_client, r"averages: a value of 'device-\d'"),
        ("lafl_cpn", "reported", wrong_channels, r"statistics of device-\d: 3 channels"),
        ("scaffold", "control", bias_alone, r"control of device-\d lacks 'features"),
        ("fedavg", "delta", lambda sent, client: {}, r"delta of device-\d lacks 'features"),
    ],
    ids=["mash", "sender", "statistics", "control", "delta"],
)
async def test_a_forged_answer_costs_one_contribution_and_is_named(
    tmp_path: Path, algorithm: str, field: str, change: Callable[[Any, str], Any], message: str
) -> None:
    failure = await failure_of(tmp_path, algorithm, with_field(field, change))
    assert failure.reason == "wire"
    assert re.match(message, failure.detail)


async def test_scores_on_test_sets_that_were_not_requested_are_refused(tmp_path: Path) -> None:
    def forge(reply: Any) -> Any:
        score = Score(n=1, n_correct=1, loss_sum=0.0)
        return reply.replace(outcomes=(reply.outcomes[0].replace(own_on={"x" * 1000: score}),))

    failure = await failure_of(tmp_path, "fedavg", forge)
    assert failure.reason == "wire"
    assert "was tested on 'xxx" in failure.detail
    assert len(failure.detail) < 200
