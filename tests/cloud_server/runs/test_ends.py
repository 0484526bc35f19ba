"""Runs that end before their last round, through the three tiers, and runs in which no update was used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from shared.run_records.runs import RunInfo
from strata.commands.run import NO_UPDATE, report
from strata.options import Format
from tests.federation import Federation, small_spec
from tests.shared.algorithms.layouts import ran

SPEC = small_spec(num_rounds=6, lr=0.1)


async def whole_run() -> tuple[RunInfo, list[float]]:
    """Returns the run to its last round, and the global accuracy after each of them."""
    done = await ran(SPEC, agent_devices=(3, 3))
    return done.info, [detail.evaluation["global"].accuracy or 0.0 for detail in done.rounds if detail.evaluation]


@pytest.mark.layout(agent_devices=(3, 3))
async def test_a_run_ends_at_its_target_accuracy_with_the_bits_of_so_many_rounds(fed: Federation) -> None:
    _, curve = await whole_run()
    target = sorted(curve)[2]
    first = next(n for n in range(2, 7) if min(curve[n - 2 : n]) >= target)
    assert 2 <= first < 6
    info = await fed.run({**SPEC, "stop": {"accuracy": target, "times": 2}})
    assert (info.status, info.rounds, info.num_rounds) == ("completed", first, first)
    assert info.reason is not None
    assert info.reason == info.ended_by
    assert "reached stop.accuracy" in info.reason
    assert info.reason.endswith("in 2 evaluations in a row")
    assert any(name.startswith("global_at_edge") for name in info.final)  # evaluated as a last round
    plain = await fed.run({**SPEC, "num_rounds": first})
    assert (plain.model_sha256, plain.accuracy) == (info.model_sha256, info.accuracy)
    assert plain.final == info.final


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.layout(agent_devices=(3, 3))
@pytest.mark.parametrize("budget", ["simulated_s", "bytes", "joules"])
async def test_a_run_ends_when_a_budget_is_spent_and_goes_on_with_a_larger_one(budget: str, fed: Federation) -> None:
    spec = {**SPEC, "devices": {"profile": "phone_low"}}
    whole = (await ran(spec, agent_devices=(3, 3))).info
    totals = {"simulated_s": whole.simulated_s, "bytes": whole.bytes_up + whole.bytes_down, "joules": whole.energy_j}
    assert totals[budget] > 0
    unit = int if budget == "bytes" else float
    stop, larger = ({budget: unit(totals[budget] / 6 * rounds)} for rounds in (2.5, 4.5))
    info = await fed.run({**spec, "stop": stop})
    assert (info.status, info.rounds, info.num_rounds, info.stop) == ("completed", 3, 3, None)
    assert f"spent of stop.{budget}" in (info.reason or "")
    more = await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 3, "stop": larger})
    assert (more.status_code, more.json()["ended_by"], more.json()["num_rounds"]) == (200, None, 6)
    assert 3 < (await fed.finish(info.run)).rounds < 6  # about five: rounds do not all cost the same
    left = 6 - (await fed.info(info.run)).rounds
    end = await fed.add_rounds(info.run, left)
    assert (end.rounds, end.reason, end.model_sha256) == (6, None, whole.model_sha256)
    wrong = await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 3, "stop": {"bytes": 0}})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "stop.bytes")


@pytest.mark.whole
async def test_a_target_holds_after_a_pause_and_a_restart_of_the_cloud(fed: Federation) -> None:
    _, curve = await whole_run()
    target = min(curve[2:5])
    first = next(n for n in range(3, 7) if min(curve[n - 3 : n]) >= target)
    stopping = {**SPEC, "stop": {"accuracy": target, "times": 3}}
    run_id = await fed.start_and_pause(stopping, first - 1)
    fed.router.tamper = None
    await fed.restart_cloud()
    await fed.until(lambda: fed.n_agents() == 6)
    await fed.control(run_id, "resume")
    info = await fed.finish(run_id)
    assert (info.status, info.rounds) == ("completed", first)
    assert (info.reason or "").endswith("in 3 evaluations in a row")


@pytest.mark.whole
async def test_a_target_of_clients_own_models(fed: Federation) -> None:
    info = await fed.run({**SPEC, "algorithm": "local_sgd", "stop": {"accuracy": 0.2}})
    assert info.rounds < 6
    assert "reached stop.accuracy 0.2" in (info.reason or "")


@pytest.mark.whole
async def test_a_run_without_a_used_update_says_so(tmp_path: Path, fed: Federation) -> None:
    """All visits come after the deadline, which is no failure of theirs."""
    spec = small_spec(round_deadline_s=1e-6)
    info = await fed.run(spec)
    rounds = tuple([await fed.round(info.run, round_no) for round_no in (1, 2)])
    assert (info.status, info.n_used) == ("completed", 0)
    assert (info.reason or "").startswith("no update was used in any round")
    assert report(info, rounds, tmp_path, Format.json, interrupted=False) == NO_UPDATE == 3
    good = await fed.run(small_spec())
    assert (good.reason, good.n_used) == (None, 12)
    used = tuple([await fed.round(good.run, round_no) for round_no in (1, 2)])
    assert report(good, used, tmp_path, Format.json, interrupted=False) == 0


@pytest.mark.parametrize(
    ("stop", "field", "message"),
    [
        ({}, "stop", "at least one of"),
        ({"times": 2, "bytes": 5}, "stop", "which is missing"),
        ({"accuracy": 1.5}, "stop.accuracy", "at most 1"),
        ({"accuracy": 0.9, "times": 0}, "stop.times", "at least 1"),
        ({"bytes": 1.5}, "stop.bytes", "whole number"),
        ({"joules": -1}, "stop.joules", "greater than 0"),
        ({"seconds": 5}, "stop.seconds", "unknown field"),
    ],
)
def test_bad_conditions_are_refused_by_field_and_cause(stop: Any, field: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_spec({"stop": stop})
    assert message in refused.value.detail
    assert refused.value.field == field
