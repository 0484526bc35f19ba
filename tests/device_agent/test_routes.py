"""What an agent says about itself, and which orders it refuses."""

from __future__ import annotations

from pathlib import Path

import httpx

from shared.service.order_headers import FOR_HEADER
from tests.federation import AGENT_PORT, Federation, PassOn, small_spec


async def test_an_agent_is_ready_once_an_edge_receives_its_heartbeats(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{AGENT_PORT}/readyz"
    async with Federation(tmp_path / "f", n_edges=0, agent_devices=()) as fed:
        await fed.start_agent(0, devices=1)
        answer = await fed.client.get(url)
        assert answer.status_code == 503
        assert answer.json()["missing"] == ["an edge that receives this agent's heartbeats"]
        await fed.start_edge(0)
        await fed.until(lambda: fed.n_agents() == 1)
        answer = await fed.client.get(url)
        assert (answer.status_code, answer.json()["missing"]) == (200, [])


async def test_an_order_for_another_agent_at_the_same_address_is_refused_untouched(tmp_path: Path) -> None:
    """Two containers may have had the address one after the other."""
    sent: list[httpx.Request] = []

    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:

        async def tamper(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
            if request.url.path == "/visits":
                sent.append(request)
            return await pass_on()

        fed.router.tamper = tamper
        await fed.run(small_spec(num_edges=1, num_devices=1, num_rounds=1))
        host = fed.apps["agent-0"].state.agent.host
        n_visits = host.n_visits
        answer = await fed.client.post(
            str(sent[0].url), content=sent[0].content, headers={**sent[0].headers, FOR_HEADER: "a-another"}
        )
        assert answer.status_code == 421
        assert host.n_visits == n_visits == 2
