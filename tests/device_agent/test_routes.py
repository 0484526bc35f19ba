"""What an agent says about itself."""

from __future__ import annotations

from pathlib import Path

from tests.federation import AGENT_PORT, Federation


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
