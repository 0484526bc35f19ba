"""States of devices, and of edges that are clients, survive restarts and lost visits, and affect later rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.wire import codec
from strata.checks.monitor import leaves
from tests.federation import PassOn
from tests.shared.algorithms.layouts import agents_of, answer, ended, federation, ran

LOST_SEAT = 2
"""The device whose visit is lost: one of two at its edge."""


def spec_of(**more: Any) -> dict[str, Any]:
    """Returns a spec of three devices with different classes, batch-norm, and half a batch remaining per epoch."""
    return {
        "data": {"name": "digits", "n_train": 150, "n_test": 30},
        "model": "conv_bn",
        "partition": {"name": "shards", "classes_per_device": 4},
        "num_devices": 3,
        "num_edges": 2,
        "num_rounds": 3,
        "batch_size": 20,
        "lr": 0.1,
        **more,
    }


def lose_answer(round_no: int) -> Any:
    """Garbles an agent's answer for one seat in one round, after the visit was made."""

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if agents_of(request) and request.url.path == "/visits":
            order = codec.read_header(await request.aread()).record
            seats = [visit["seat"] for visit in order["visits"]]
            if order["stage"]["round_no"] == round_no and seats == [LOST_SEAT]:
                await (await pass_on()).aread()
                return answer(200, b"garbage")
        return await pass_on()

    return tamper


LAFL = {"algorithm": {"name": "lafl_cpn", "params": {"p": 1}}, "augment": "randaugment", "batch_size": 25}
CASES: dict[str, dict[str, Any]] = {
    "fedmix": {"algorithm": "fedmix"},  # what the edge has sent before
    "scaffold": {"algorithm": "scaffold"},
    "local_sgd": {"algorithm": "local_sgd"},
    "fedper of edges": {"algorithm": "fedper", "client": "edge"},
    "lafl_cpn": LAFL,
}
"""One of each kind of state; that all states are the same ones after encoding is the contract's."""


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES)
async def test_state_survives_a_restart_and_a_lost_visit_does_not_change_it(case: str, tmp_path: Path) -> None:
    """The run is paused after its first training round, agent and edge restart, and a visit is lost."""
    fields = CASES[case]
    first = 2 if case == "fedmix" else 1  # round of training
    losses = [{"round_no": first + 1, "seats": [LOST_SEAT]}]
    whole = await ran(spec_of(**fields, losses=losses), agent_devices=(2, 1))
    async with federation(tmp_path, agent_devices=(1,) * 3) as fed:
        run_id = await fed.submit(spec_of(**fields, num_rounds=1))
        await ended(fed, run_id)
        await fed.stop("agent-1")
        await fed.stop("edge-0")
        await fed.start_edge(0)
        await fed.start_agent(1)
        await fed.until(lambda: fed.n_agents() == 3)
        fed.router.tamper = lose_answer(first + 1)
        assert (await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 2})).status_code == 200
        done = await ended(fed, run_id)
    assert [failure.seat for failure in done.rounds[first].failures] == [LOST_SEAT]
    assert done.info.model_sha256 == whole.info.model_sha256
    assert leaves(done.state) == leaves(whole.state)
    assert done.info.accuracy == whole.info.accuracy
    assert not any(row.fresh_state for detail in done.rounds for row in detail.seats)
    assert not any(row.fresh_state for detail in done.rounds for row in detail.edges)
