"""Limits on what callers may send, and on how much of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.storage.key_value import RedisStore, StoreUnavailable
from tests.cloud_server.streaming import opened
from tests.federation import CLOUD_PORT, EDGE_PORT, Federation, small_spec

JSON = {"content-type": "application/json"}
PAUSED = {"timeouts": {"ready_s": 3600}, "num_devices": 9}
"""Runs with this spec never start: they wait for devices."""


def deep(n: int, around: str = "%s", left: str = "[", right: str = "]") -> bytes:
    return (around % (left * n + "1" + right * n)).encode()


async def test_no_more_runs_are_kept_than_the_setting_says(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,), cloud={"max_runs": 2}) as fed:
        key = {"idempotency-key": "once"}
        first = await fed.client.post("/runs", json={"spec": small_spec(**PAUSED)}, headers=key)
        second = await fed.submit(small_spec(**PAUSED))
        refused = await fed.client.post("/runs", json={"spec": small_spec(**PAUSED)})
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many")
        assert "2 runs are stored (CLOUD_MAX_RUNS)" in refused.json()["detail"]
        again = await fed.client.post("/runs", json={"spec": small_spec(**PAUSED)}, headers=key)
        assert again.json()["run"] == first.json()["run"]  # not a new one
        assert len((await fed.client.get("/runs")).json()["runs"]) == 2
        await fed.client.post(f"/runs/{second}/stop")
        await fed.until_status(second, "stopped")
        assert (await fed.client.delete(f"/runs/{second}")).status_code == 204
        assert await fed.submit(small_spec(**PAUSED))


async def test_deeply_nested_json_is_refused_without_a_crash(tmp_path: Path) -> None:
    paths = [
        ("POST", f"http://127.0.0.1:{CLOUD_PORT}/agents"),
        ("POST", f"http://127.0.0.1:{CLOUD_PORT}/heartbeats"),
        ("POST", f"http://127.0.0.1:{EDGE_PORT}/heartbeats"),
        ("PUT", f"http://127.0.0.1:{EDGE_PORT}/placements"),
    ]
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=()) as fed:
        for n in (100, 500, 900, 2000, 100_000):
            bodies = [
                deep(n),
                deep(n, '{"spec": %s}', '{"a":', "}"),
                deep(n, '{"spec": {"name": %s}}'),
                deep(n, '{"spec": {"partition": %s}}', '{"name":', "}"),
                deep(n, '{"spec": {"algorithm": {"name": "fedprox", "params": %s}}}', '{"mu":', "}"),
                b'{"spec": {"seed": ' + b"9" * 10 * n + b"}}",
            ]
            answers = [await fed.client.post("/runs", content=body, headers=JSON) for body in bodies]
            answers += [await fed.client.request(method, url, content=deep(n), headers=JSON) for method, url in paths]
            for answer in answers:
                assert answer.status_code in (400, 413, 422), answer.text
                assert answer.headers["content-type"] == "application/problem+json"
                assert len(answer.content) < 3000
        assert (await fed.client.get("/runs")).json()["runs"] == []


async def test_a_spec_larger_than_the_setting_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=0, agent_devices=(), cloud={"max_spec_bytes": 2000}) as fed:
        allowed = await fed.client.post("/runs", json={"spec": {"name": "x" * 1900}})
        assert (allowed.status_code, allowed.json()["field"]) == (422, "name")
        answer = await fed.client.post("/runs", json={"spec": {"name": "x" * 2000}})
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


LONG = "x" * 5000
ASKED: list[tuple[str, str, dict[str, str]]] = [
    ("GET", f"/runs/{LONG}", {}),
    ("GET", f"/runs/{LONG}/events", {}),
    ("GET", f"/runs/latest/models/{LONG}", {}),
    ("GET", f"/runs/latest/files/{LONG}", {}),
    ("GET", f"/runs/latest/rounds/{'9' * 5000}", {}),
    ("GET", f"/agents/{LONG}", {}),
    ("DELETE", f"/runs/{LONG}", {}),
    ("GET", "/runs?limit=1001", {}),
    ("GET", "/runs?limit=" + "9" * 5000, {}),
    ("GET", "/runs/latest/events", {"last-event-id": "9" * 40}),
    ("POST", "/runs", {"idempotency-key": "k" * 201}),
]


async def test_ids_queries_and_headers_are_bounded(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        await fed.submit(small_spec(**PAUSED))
        for method, url, headers in ASKED:
            body: Any = {"spec": small_spec()} if method == "POST" else None
            answer = await fed.client.request(method, url, headers=headers, json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "bad_input"), (method, url[:40], answer.text)
            assert len(answer.content) < 3000


async def test_only_files_of_the_results_folder_are_served(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        info = await fed.run(small_spec(num_edges=1, num_devices=1, num_rounds=1))
        (tmp_path / "f" / "secret").write_text("hidden")
        (tmp_path / "f" / "runs" / "secret").write_text("hidden")
        names = ["../secret", "../../secret", "/etc/passwd", "plots/../../secret", ".", "", "plots"]
        for name, status in [*((name, 404) for name in names), ("manifest.json", 200)]:
            # Not by httpx2, which would resolve the dots before the request.
            async with opened(fed.apps["cloud"], f"/runs/{info.run}/files/{name}") as stream:
                assert [event async for event in stream.events()] == []
                assert (stream.status, name) == (status, name)


async def test_an_unreachable_redis_does_not_reveal_its_password() -> None:
    store = RedisStore("redis://someone:hunter2@127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable) as caught:
        await store.ping()
    await store.close()
    assert "hunter2" not in caught.value.detail
    assert "hunter2" not in repr(caught.value)
