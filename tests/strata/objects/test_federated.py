"""`Run` with the three real services in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

import strata
from shared.core.tensors import digest
from shared.results.folder import read_rounds
from tests.federation import Federation, Gate, small_spec


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serves an application, whose lifespan has begun, on this event loop; yields its address."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.fixture
async def fed(tmp_path: Path) -> AsyncIterator[Federation]:
    async with Federation(tmp_path) as found:
        yield found


@pytest.fixture
async def url(fed: Federation) -> AsyncIterator[str]:
    async with served(fed.apps["cloud"]) as found:
        yield found


async def test_a_run_gives_its_rounds_its_model_its_tables_and_its_pictures(url: str, tmp_path: Path) -> None:
    def used() -> None:
        with strata.connect(url) as cloud:
            run = cloud.run(small_spec(num_rounds=3), name="mine", lr=0.1)
            rounds = list(run.rounds())
            assert [row.round_no for row in rounds] == [1, 2, 3]
            assert run.status == "completed"
            assert [row.accuracy for row in rounds][-1] == run.accuracy is not None
            assert all(row.loss is not None for row in rounds)
            assert run.info.bytes_up == sum(row.bytes_up for row in rounds) > 0
            assert digest(run.model()) == run.info.model_sha256
            kinds = [event.kind for event in run.events()]
            assert (kinds.count("round.committed"), kinds.count("round.evaluated")) == (3, 3)
            assert len(run.devices()) == 6
            assert len(run.round(2).seats) == 6
            assert run.plot("timeline", round_no=2).save(tmp_path / "timeline.svg").stat().st_size > 1000
            assert run.plot().figure().axes[0].get_ylabel() == "accuracy"
            with pytest.raises(strata.StrataError, match=r"unknown picture 'x'; known: accuracy, .*timeline"):
                run.plot("x")
            pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
            assert run.to_pandas()["bytes_up"].tolist() == [row.bytes_up for row in rounds]
            visits = run.to_pandas("visits")
            assert sorted(visits["round_no"].unique()) == [1, 2, 3]
            assert len(visits) == sum(row.n_visits for row in rounds)
            assert visits.groupby("round_no")["up_bytes"].sum().tolist() == [row.device_bytes_up for row in rounds]

    await asyncio.to_thread(used)


@pytest.mark.slow
async def test_a_saved_run_answers_without_its_cloud(url: str, tmp_path: Path) -> None:
    def used() -> None:
        with strata.connect(url) as cloud:
            run = cloud.run(small_spec(metrics=["f1", "accuracy"])).wait(progress=False)
            folder = run.save(tmp_path / "here")
            report = run.report(tmp_path / "report.html").read_text(encoding="utf-8")
        assert run.id in report
        saved = strata.load_run("latest", tmp_path / "here")
        assert saved.folder == folder.resolve()
        assert (saved.id, saved.accuracy, saved.status) == (run.id, run.accuracy, "completed")
        for each in (run, saved.wait()):  # the run itself has lost its cloud
            assert [row.accuracy for row in each.rounds()] == [row.accuracy for row in read_rounds(folder)][:2]
            assert digest(each.model()) == run.info.model_sha256
            assert (each.plot("bytes").picture.name, each.plot().picture.name) == ("bytes", "f1")
            assert len(each.devices()) == 6
        with pytest.raises(strata.errors.Conflict, match="no cloud is connected"):
            saved.stop()
        with pytest.raises(strata.errors.NotFound, match="holds no model 'other'; it has global"):
            saved.model("other")

    await asyncio.to_thread(used)


@pytest.mark.whole
async def test_runs_are_compared_wherever_they_are(url: str, tmp_path: Path) -> None:
    def used() -> None:
        with strata.connect(url) as cloud:
            slow, fast = (cloud.run(small_spec(num_rounds=3), lr=lr).wait(progress=False) for lr in (0.05, 0.2))
            slow.save(tmp_path)
            both = strata.compare(strata.load_run(slow.id, tmp_path), fast, target=0.2)
            at_clients = strata.compare(fast, clients=True)
        assert both.target == 0.2
        assert repr(both) == "<Comparison of 'lr=0.05, lr=0.2'>"
        assert both.plot().picture.name == "compare"
        assert f"<td>{fast.id}</td>" in both._repr_html_()
        with pytest.raises(strata.errors.NotFound, match="no run to compare"):
            strata.compare()
        pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
        table = both.to_pandas()
        assert table["lr"].to_dict() == {slow.id: 0.05, fast.id: 0.2}
        assert table["accuracy"].to_dict() == {slow.id: slow.accuracy, fast.id: fast.accuracy}
        (row,) = at_clients.to_pandas().itertuples()
        assert (row.accuracy_of, row.accuracy) == ("mean over clients", row.clients_mean)

    await asyncio.to_thread(used)


async def test_rounds_come_while_the_run_goes_on(fed: Federation, url: str) -> None:
    """The second round's order is held until the first round has been given; else this test never ends."""
    gate = Gate(fed, 2, "/rounds", 9100)
    given: list[int] = []
    loop = asyncio.get_running_loop()

    def used() -> None:
        with strata.connect(url) as cloud:
            for row in cloud.run(small_spec()).rounds():
                given.append(row.round_no)
                loop.call_soon_threadsafe(gate.open.set)

    await asyncio.to_thread(used)
    assert given == [1, 2]


@pytest.mark.whole
async def test_a_paused_run_is_resumed_and_gives_the_same_model(fed: Federation, url: str) -> None:
    def whole() -> str | None:
        with strata.connect(url) as cloud:
            return cloud.run(small_spec(num_rounds=3)).wait(progress=False).info.model_sha256

    expected = await asyncio.to_thread(whole)
    run_id = await fed.start_and_pause(small_spec(num_rounds=3), 1)

    def resumed() -> str | None:
        with strata.connect(url) as cloud:
            run = cloud.get_run(run_id)
            assert run.status == "paused"
            return run.resume().wait(progress=False).info.model_sha256

    assert await asyncio.to_thread(resumed) == expected
