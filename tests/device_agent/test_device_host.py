"""What an agent does and keeps while orders come and go."""

from __future__ import annotations

from pathlib import Path

from tests.federation import Federation, Gate, small_spec


async def test_an_agent_says_which_seat_trains_and_how_many_orders_wait(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        host = fed.apps["agent-0"].state.agent.host
        assert (host.visiting, host.waiting, host.n_visits) == (None, 0, 0)
        seats_during_visits: list[tuple[int | None, int]] = []
        begin = host._on_visit_start

        def on_start(seat: int) -> None:
            begin(seat)
            seats_during_visits.append((host.visiting, host.waiting))

        host._on_visit_start = on_start
        await fed.run(small_spec(num_edges=1, num_devices=1))
        # Two rounds and the evaluation after them.
        assert seats_during_visits == [(0, 1)] * 3
        assert (host.visiting, host.waiting, host.n_visits) == (None, 0, 3)


async def test_an_agent_forgets_the_orders_of_an_earlier_run_once_another_begins(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        await fed.run(small_spec(num_edges=1, num_devices=1))
        gate = Gate(fed, closed_at=2)
        second = await fed.submit(small_spec(num_edges=1, num_devices=1))
        await gate.reached.wait()
        orders = fed.apps["agent-0"].state.agent.orders
        assert {queue.run_id for queue in orders._work} == {second}
        gate.open.set()
        await fed.finish(second)


async def test_updates_that_are_held_for_a_run_are_dropped_when_it_is_deleted_and_not_before(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        gate = Gate(fed, path="/uploads")
        run_id = await fed.submit(small_spec(num_edges=1, num_devices=1, round_deadline_s=1e6))
        await gate.reached.wait()
        host = fed.apps["agent-0"].state.agent.host
        await host.forget("another")
        assert [held_for for held_for, *_ in host._held] == [run_id]
        await fed.control(run_id, "stop")
        await fed.finish(run_id)
        await fed.until(lambda: fed.apps["cloud"].state.cloud.runs.executor is None)
        assert (await fed.client.delete(f"/runs/{run_id}")).status_code == 204
        await fed.until(lambda: not host._held)
        gate.open.set()
