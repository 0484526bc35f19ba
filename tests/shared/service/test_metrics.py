"""Metrics of the three tiers after a small run: values equal the records, and hostile names add no label."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud_server.metrics import CloudMetrics
from cloud_server.runs.events import RunEvent, to_all
from device_agent.metrics import AgentMetrics
from edge_server.metrics import EdgeMetrics
from edge_server.rounds.round_log import RoundLog
from shared.core import errors
from shared.core.errors import StrataError
from shared.federation.messages import Failure, Outcome
from shared.run_records.runs import FINAL
from shared.run_records.visits import VisitRecord
from shared.service.metrics import OTHER, REASONS, TierMetrics, one_of
from tests.federation import AGENT_PORT, CLOUD_PORT, EDGE_PORT, Federation, small_spec

Series = tuple[str, tuple[tuple[str, str], ...]]
HOSTILE = 'x"} 1\nstrata_evil{a="\u202e\x1b[31m'


def parsed(text: str) -> dict[Series, float]:
    """Every sample of a page, by name and labels, read by Prometheus' own parser."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def samples_of(metrics: TierMetrics) -> dict[Series, float]:
    """Returns every sample of a tier's registry."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def total(found: dict[Series, float], name: str, **labels: str) -> float:
    """The sum over the series of a name with these labels; there must be one."""
    values = [v for (n, given), v in found.items() if n == name and labels.items() <= dict(given).items()]
    assert values, (name, labels)
    return sum(values)


async def pages(fed: Federation) -> tuple[dict[Series, float], list[dict[Series, float]], list[dict[Series, float]]]:
    """Returns the pages of the cloud, of each edge and of each agent."""

    async def page(port: int) -> dict[Series, float]:
        answer = await fed.client.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return parsed(answer.text)

    edges = [await page(EDGE_PORT + n) for n in range(fed.n_edges)]
    return await page(CLOUD_PORT), edges, [await page(AGENT_PORT + n) for n in range(len(fed.agent_devices))]


async def test_after_a_run_the_metrics_of_all_tiers_match_its_record(tmp_path: Path) -> None:
    began = time.monotonic()
    async with Federation(tmp_path / "f", agent_devices=(1,) * 6) as fed:
        before, _, _ = await pages(fed)
        assert math.isnan(total(before, "strata_cloud_run_accuracy_ratio", of="global"))
        losses = [{"round_no": 2, "seats": [4]}]
        info = await fed.run(small_spec(losses=losses))
        assert info.status == "completed", info.reason
        details = [await fed.round(info.run, number) for number in (1, 2)]
        await fed.until(lambda: not fed.apps["cloud"].state.cloud.runs.training)
        cloud, edges, agents = await pages(fed)
    assert total(cloud, "strata_cloud_round_seconds_count") == 2
    assert total(cloud, "strata_cloud_round_seconds_sum") == pytest.approx(sum(d.wall_s for d in details))
    assert total(cloud, "strata_cloud_round_simulated_seconds_sum") == pytest.approx(info.simulated_s)
    for direction in ("up", "down"):
        for link in ("device", "edge"):
            expected = sum(getattr(d, f"{link}_bytes_{direction}") for d in details)
            assert total(cloud, "strata_cloud_link_bytes_total", link=link, direction=direction) == expected > 0
    assert total(cloud, "strata_cloud_failures_total", where="seat", reason="left_out") == 1
    counted = {"visits_total": 12, "updates_total": 11, "failures_total": 1, "runs": 0}
    counted["exchange_seconds_count"] = 6  # two rounds and the last evaluation, two edges
    assert {name: total(cloud, f"strata_cloud_{name}") for name in counted} == counted
    assert total(cloud, "strata_cloud_run_accuracy_ratio", of="global") == info.accuracy
    assert total(cloud, "strata_cloud_run_loss", of="global") == info.loss
    assert total(cloud, "strata_cloud_run_loss", of="train") == details[-1].train_loss
    assert total(cloud, "strata_cloud_heartbeats_total") > 0
    assert total(cloud, "strata_cloud_registrations_total", kind="agent") >= 6
    assert total(cloud, "process_resident_memory_bytes") > 2**20

    def over(tier: list[dict[Series, float]], name: str, **labels: str) -> float:
        return sum(total(found, name, **labels) for found in tier)

    counts = {"rounds": {"answered": 6, "failed": 0}, "visits": {"used": 11, "failed": 1, "evaluated": 6}}
    for what, outcomes in counts.items():
        assert {key: over(edges, f"strata_edge_{what}_total", outcome=key) for key in outcomes} == outcomes
    assert over(edges, "strata_edge_failures_total", reason="left_out") == 1
    assert over(edges, "strata_edge_agents") >= 6, "an agent may be alive at its home edge and where it worked"
    counted = {"visits_begun_total": 17, "visit_seconds_count": 17, "failures_total": 0, "devices": 6}
    assert {name: over(agents, f"strata_agent_{name}") for name in counted} == counted
    for kind, n in (("train", 11), ("evaluate", 6)):
        assert over(agents, "strata_agent_visits_total", kind=kind, outcome="done") == n
    assert 0 < over(agents, "strata_agent_testing_seconds_total") < time.monotonic() - began
    assert over(agents, "strata_agent_heartbeats_total", outcome="answered") > 0
    for direction in ("up", "down"):  # with one device per agent, bytes on sockets equal those on links
        carried = over(edges, "strata_edge_socket_bytes_total", direction=direction)
        assert carried == over(agents, "strata_agent_socket_bytes_total", direction=direction)
        assert carried == over(edges, "strata_edge_link_bytes_total", direction=direction) > 0


async def test_waiting_runs_are_counted_also_by_a_restarted_cloud(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", agent_devices=(6,), n_edges=2) as fed:
        first = await fed.start_and_pause(small_spec(num_rounds=50), 1)
        await fed.control(first, "resume")
        await fed.until_status(first, "running")
        waiting = [await fed.submit(small_spec()) for _ in range(3)]
        cloud, _, _ = await pages(fed)
        assert total(cloud, "strata_cloud_runs", status="pending") == 3
        assert total(cloud, "strata_cloud_training") == 1
        assert total(cloud, "strata_cloud_run_rounds_wanted") == 50
        await fed.control(waiting[0], "pause")
        await fed.stop("cloud")
        await fed.start_cloud()
        await fed.until_status(first, "running")
        cloud, _, _ = await pages(fed)
        assert total(cloud, "strata_cloud_runs", status="pending") == 2
        assert total(cloud, "strata_cloud_runs", status="paused") == 1
        for run in waiting[1:]:
            await fed.control(run, "stop")
        await fed.control(first, "stop")
        await fed.finish(first)
        cloud, _, _ = await pages(fed)
        assert total(cloud, "strata_cloud_runs") == total(cloud, "strata_cloud_runs", status="paused") == 1


def committed(**changes: Any) -> RunEvent:
    sizes = {f"{link}_bytes_{way}": 1 for link in ("device", "edge") for way in ("up", "down")}
    known = {"wall_s": 1.0, "simulated_s": 2.0, "n_visits": 1, "n_used": 1, "energy_j": 0.5, "round_no": 1}
    scores: dict[str, Any] = {"client_accuracy": None, "clients": {}, "train_loss": 0.1}
    return RunEvent("round.committed", {**known, **sizes, **scores, **changes})


def lost(seat: int | None, reason: str) -> RunEvent:
    return RunEvent("contribution.lost", {"seat": seat, "reason": reason, "edge": HOSTILE, "detail": HOSTILE})


def line(seat: int, outcome: str) -> VisitRecord:
    return VisitRecord(seat=seat, edge_round=0, wave=0, outcome=outcome, reason=HOSTILE)


def test_names_from_outside_create_no_series() -> None:
    cloud, edge, agent = CloudMetrics(), EdgeMetrics(), AgentMetrics()
    before = [set(samples_of(metrics)) for metrics in (cloud, edge, agent)]
    for number in range(50):
        run = f"{HOSTILE}{number}"
        cloud.on_event(run, RunEvent("run.status", {"status": "starting"}))
        cloud.on_event(run, RunEvent(f"{HOSTILE}{number}", {}))
        cloud.on_event(run, committed(round_no=number))
        cloud.on_event(run, lost(number, f"{HOSTILE}{number}"))
        cloud.on_event(run, lost(None, f"{number}"))
        scores = {run: {"accuracy": 1.0, "loss": 1.0}}
        cloud.on_event(run, RunEvent("round.evaluated", {"evaluation": scores, "metric": run, "score": None}))
        cloud.exchanged(f"rounds{number}", 1, 1, 0.1)
        edge.exchanged(f"visits{number}", 1, 1, 0.1)
        failure = Failure(seat=number, reason=f"{HOSTILE}{number}", detail=HOSTILE)
        agent.visited(Outcome[Any](seat=number, kind="train", failure=failure), 0.1)
        book = RoundLog(None, number)  # type: ignore[arg-type]
        book.visits, book.failures = [line(number, f"{HOSTILE}{number}")], [failure]
        edge.noted(book)
    assert [set(samples_of(metrics)) for metrics in (cloud, edge, agent)] == before
    assert total(samples_of(cloud), "strata_cloud_failures_total", where="edge", reason=OTHER) == 50
    assert total(samples_of(edge), "strata_edge_visits_total", outcome=OTHER) == 50
    assert total(samples_of(edge), "strata_edge_exchange_seconds_count", order=OTHER) == 50
    assert total(samples_of(agent), "strata_agent_failures_total", reason=OTHER) == 50
    for metrics in (cloud, edge, agent):
        assert "evil" not in str(samples_of(metrics))


def test_errors_in_metrics_or_logging_cannot_fail_a_run(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def broken(run: str, event: RunEvent) -> None:
        raise KeyError(event.kind)

    hear = to_all(broken, lambda run, event: heard.append(run), CloudMetrics().on_event)
    hear("a", RunEvent("round.committed", {}))  # the run has no figures
    assert heard == ["a"]
    assert caplog.text.count("a listener failed at an event of run a") == 2


def test_figures_of_one_run_are_not_those_of_the_next() -> None:
    cloud = CloudMetrics()
    scores = {"global": {"accuracy": 0.5, "loss": 1.5}}
    for run, kinds in (("a", ("starting", "running")), ("b", ("pending",))):
        for status in kinds:
            cloud.on_event(run, RunEvent("run.status", {"status": status}))
    cloud.on_event("a", committed(client_accuracy=0.25, clients={"own": {"mean": 0.125}}))
    cloud.on_event("a", RunEvent("round.evaluated", {"evaluation": scores, "metric": "f1", "score": 0.75}))
    assert total(samples_of(cloud), "strata_cloud_run_accuracy_ratio", of="global") == 0.5
    assert total(samples_of(cloud), "strata_cloud_run_accuracy_ratio", of="clients") == 0.25
    assert total(samples_of(cloud), "strata_cloud_run_score", of="global") == 0.75
    assert total(samples_of(cloud), "strata_cloud_run_score", of="clients") == 0.125
    cloud.on_event("a", RunEvent("run.status", {"status": "starting"}))  # resumed
    assert total(samples_of(cloud), "strata_cloud_run_accuracy_ratio", of="global") == 0.5
    cloud.on_event("a", RunEvent("run.status", {"status": "failed"}))
    cloud.on_event("b", RunEvent("run.status", {"status": "starting"}))
    assert math.isnan(total(samples_of(cloud), "strata_cloud_run_accuracy_ratio", of="global"))
    cloud.on_event("a", RunEvent("round.evaluated", {"evaluation": scores, "metric": "f1", "score": 0.75}))
    assert math.isnan(total(samples_of(cloud), "strata_cloud_run_accuracy_ratio", of="global"))
    assert total(samples_of(cloud), "strata_cloud_runs") == 1


def test_ends_of_runs_and_events_that_ask_for_mending_are_counted() -> None:
    cloud = CloudMetrics()
    for kind, data in (
        ("run.status", {"status": "running"}),
        ("run.status", {"status": "failed"}),
        ("run.status", {"status": "completed"}),
        ("node.lost", {}),
        ("node.lost", {}),
        ("node.revived", {}),
        ("store.changed", {"reason": "Redis was restarted"}),
    ):
        cloud.on_event("a", RunEvent(kind, data))
    found = samples_of(cloud)
    ends = {status: total(found, "strata_cloud_run_ends_total", status=status) for status in sorted(FINAL)}
    assert ends == {"completed": 1, "failed": 1, "stopped": 0}
    assert total(found, "strata_cloud_warnings_total", event="node.lost") == 2
    assert total(found, "strata_cloud_warnings_total") == 3


def test_every_error_that_can_cost_a_contribution_is_a_reason() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StrataError)]
    assert len(kinds) > 15
    assert {kind.code for kind in kinds} <= set(REASONS)
    assert len(set(REASONS)) == len(REASONS)
    assert [one_of(value, REASONS) for value in ("lost", "never heard", None, 7, ["lost"])] == ["lost", *[OTHER] * 4]


def test_a_failed_edge_order_is_counted_as_failed_and_no_longer_as_running() -> None:
    edge = EdgeMetrics()

    def fail() -> None:
        with edge.one_round():
            assert total(samples_of(edge), "strata_edge_rounds_running") == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert total(samples_of(edge), "strata_edge_rounds_total", outcome="failed") == 1
    assert total(samples_of(edge), "strata_edge_round_seconds_count") == 1
    assert total(samples_of(edge), "strata_edge_rounds_running") == 0
