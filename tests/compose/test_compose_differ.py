"""Different devices in real containers: one that is paused under the real clock, and two classes of containers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from shared.simulation import PROFILES
from tests.compose.stack import ENDED, ROOT, compose, docker, ended, round_with, scaled, submit, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
DEADLINE_S, SCALE = 80, 0.1
REAL = {
    "num_devices": 4,
    "num_rounds": 10_000,
    "eval_every": 10_000,
    "lr": 0.05,
    "clock": "real",
    "time_scale": SCALE,
    "round_deadline_s": DEADLINE_S,
    "devices": {"profile": {"delay_s": 5}},
}


@pytest.fixture
def classes(stack: httpx2.Client) -> Iterator[httpx2.Client]:
    """The stack; at the end it has six devices of one class again."""
    try:
        yield stack
    finally:
        compose("rm", "-s", "-f", "-v", "device_slow")
        scaled(stack, "device", 6, 6)


def test_a_paused_container_misses_the_deadline_and_takes_part_again_when_it_continues(stack: httpx2.Client) -> None:
    ended(stack, submit(stack, {"num_rounds": 1}))  # a first round would include one-time preparation
    run = submit(stack, REAL)
    first = until("a round of all four", lambda: complete_round(stack, run))
    victim = first["seats"][0]
    name = next(d["name"] for d in stack.get("/agents").json()["agents"] if d["agent"] == victim["agent"])
    docker("pause", name)
    try:
        late = until("the late one", lambda: round_with(stack, run, victim["seat"], "failed"))
    finally:
        docker("unpause", name)
    back = until("the device again", lambda: round_with(stack, run, victim["seat"], "used"))
    assert stack.post(f"/runs/{run}/stop").status_code == 200
    assert ended(stack, run)["spec"]["clock"] == "real"
    assert [row["outcome"] for row in first["seats"]] == ["used"] * 4
    for row in first["seats"]:
        assert row["measured_s"] >= row["simulated_s"] * SCALE > 5 * SCALE
    (failure,) = late["failures"]
    assert (failure["seat"], failure["reason"]) == (victim["seat"], "late")
    assert victim["agent"] in failure["detail"]
    assert late["n_used"] == 3
    assert late["wall_s"] >= DEADLINE_S * SCALE
    assert late["simulated_s"] > DEADLINE_S
    row = next(row for row in back["seats"] if row["seat"] == victim["seat"])
    assert (row["agent"], row["fresh_state"], back["n_used"]) == (victim["agent"], False, 4)


def complete_round(client: httpx2.Client, run: str) -> dict[str, Any] | None:
    """Returns the newest round if all four seats took part in it."""
    info = client.get(f"/runs/{run}").json()
    assert info["status"] not in ENDED, info["reason"]
    detail = client.get(f"/runs/{run}/rounds/{info['rounds']}").json()
    return detail if detail.get("n_used") == 4 else None


def test_two_classes_of_containers_give_the_same_record_in_any_start_order(classes: httpx2.Client) -> None:
    spec = {"num_rounds": 2, "lr": 0.1, "devices": {"edge_latency_s": 0}}  # which names no profile
    scaled(classes, "device", 4, 4)
    scaled(classes, "device_slow", 2, 6)
    first = record_of(classes, spec)
    compose("rm", "-s", "-f", "-v", "device")
    scaled(classes, "device", 4, 6)  # now they start after the slow ones and have new ids
    second = record_of(classes, spec)
    assert first == second
    counts = Counter(row["profile"] for row in first[3])
    assert counts == {"standard": 8, "phone_low": 4}
    rates = {
        row["profile"]: round(row["compute_s"] / row["n_samples"] * PROFILES[row["profile"]].compute_sps, 9)
        for row in first[3]
    }
    assert rates["standard"] == rates["phone_low"]  # equal work at the speed of each class
    late = record_of(classes, {**readme_spec(), "num_rounds": 2})[3]
    assert Counter((row["profile"], row["reason"]) for row in late) == {("standard", None): 8, ("phone_low", "late"): 4}


def readme_spec() -> dict[str, Any]:
    """The spec of the request in the README, which is sent to four devices and two slow ones."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "--scale device=4 --scale device_slow=2\n    curl " in text
    (body,) = re.findall(r"^    curl .* -d '(.*)'$", text, re.MULTILINE)
    return dict(json.loads(body)["spec"])


def record_of(client: httpx2.Client, spec: dict[str, Any]) -> tuple[Any, ...]:
    """Completes a run of two rounds; returns model, bytes, simulated time and visits, without their hosts."""
    info = ended(client, submit(client, spec))
    assert info["status"] == "completed", info["reason"]
    run = info["run"]
    rows = [row for n in (1, 2) for row in client.get(f"/runs/{run}/rounds/{n}").json()["seats"]]
    visits = [{name: value for name, value in row.items() if name != "agent"} for row in rows]
    return info["model_sha256"], info["bytes_up"], info["simulated_s"], visits
