"""docs/monitoring.md, the Prometheus configuration, the board and Compose agree with the metrics of the tiers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.metrics_core import Metric

from cloud_server.metrics import WARNINGS, CloudMetrics
from cloud_server.nodes.registry import Registry
from cloud_server.runs.evaluation import Evaluator
from device_agent.app import build as build_agent
from device_agent.settings import AgentSettings
from edge_server.metrics import EdgeMetrics
from edge_server.roster import Roster
from shared.identity.names import ANY_NODE
from shared.run_records.runs import FINAL
from shared.service.client import Caller
from shared.service.metrics import REASONS, TierMetrics
from shared.service.settings import CommonSettings
from tests.fakes.memory_store import MemoryStore

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
BOARD: dict[str, Any] = json.loads((ROOT / "monitoring" / "grafana" / "boards" / "strata.json").read_text("utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""
JOBS = {"cloud", "edge", "agent", "tiers"}
"""Those of our configurations and, on the page, of local processes."""
WORDS = {"sum", "by", "le", "rate", "increase", "histogram_quantile", "max", "__rate_interval"}
WORDS |= {"on", "and", "or", "unless", "group_left"}
OWN = {"up"}
"""Metrics of Prometheus itself."""


class Idle:
    """A cloud's run manager that executes no run."""

    training = ()


def tiers(folder: Path) -> list[TierMetrics]:
    cloud, edge = CloudMetrics(), EdgeMetrics()
    registry = Registry(MemoryStore(), Caller(httpx2.AsyncClient()), [], 1.0)
    cloud.watch(registry, Idle(), Evaluator(None, None))  # type: ignore[arg-type]
    edge.watch(Roster(), 1.0)
    settings = AgentSettings(state_dir=folder, port=9, common=CommonSettings(cache_dir=folder))
    agent = build_agent(settings, httpx2.AsyncClient())
    agent.host.close()
    return [cloud, edge, agent.metrics]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """Returns the metric families of all tiers, each once."""
    made = tiers(tmp_path_factory.mktemp("agent"))
    found = {family.name: family for metrics in made for family in metrics.registry.collect()}
    return list(found.values())


def exposed(family: Metric) -> str:
    """Returns the name of a family as the page of metrics shows it."""
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def labels(family: Metric) -> dict[str, list[str]]:
    """Returns the labels of a family with their values, without Prometheus' own."""
    found: dict[str, list[str]] = {}
    for sample in family.samples:
        for name, value in sample.labels.items():
            if name not in ("le", "version"):
                found[name] = list(dict.fromkeys([*found.get(name, []), value]))
    return found


def row(family: Metric) -> str:
    """Returns a row of the page's table."""
    shown = [f"`{name}`" + (f": {', '.join(v)}" if len(v) < 9 else "") for name, v in labels(family).items()]
    return f"| `{exposed(family)}` | {family.type} | {'; '.join(shown)} | {family.documentation} |"


def test_the_page_has_every_metric_that_a_tier_exports_and_no_other(families: list[Metric]) -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `(strata|process)_", line)]
    assert sorted(rows) == sorted(row(family) for family in families)
    assert len(rows) > 40


def test_metric_names_follow_prometheus_conventions(families: list[Metric]) -> None:
    for family in families:
        assert re.fullmatch(r"(strata_(cloud|edge|agent)|process)(_[a-z]+)+", family.name)
        timed = "second" in family.name and family.name != "strata_agent_testing_seconds"
        assert not timed or family.name.endswith("_seconds"), family.name
        assert family.type != "counter" or not family.name.endswith("_total")
        assert family.documentation


# ---- the board


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def names(expression: str) -> set[str]:
    """Returns the metrics in an expression: all names other than functions, labels and keywords."""
    bare = re.sub(r"\{[^}]*\}|\b(?:by|without|on) *\([^)]*\)|\[[^]]*\]", "", expression)
    return set(re.findall(r"[a-z_]{2,}", bare)) - WORDS


def rules() -> dict[str, dict[str, Any]]:
    """Returns the alerts by name."""
    (group,) = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@pytest.mark.parametrize("expression", [*expressions(), *(rule["expr"] for rule in rules().values())])
def test_expressions_of_board_and_alerts_use_exported_metrics(expression: str, families: list[Metric]) -> None:
    known = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    found = names(expression) - OWN
    assert found or names(expression)
    assert found <= known.keys()
    grouped = {label.strip() for group in re.findall(r"by *\(([^)]*)\)", expression) for label in group.split(",")}
    matched = set(re.findall(r"[{,] *([a-z_]+) *=~?", expression))
    assert grouped | matched <= set().union(*(known[name] for name in found)) | SCRAPED
    for label, value in re.findall(r"([a-z_]+)=~?\"([^\"]*)\"", expression):
        values = {value for family in families for value in labels(family).get(label, [])}
        assert set(value.split("|")) <= (JOBS if label == "job" else values)


def test_the_check_of_expressions_can_fail() -> None:
    assert names("rate(strata_cloud_gone_total[5m]) / on_this(x)") == {"strata_cloud_gone_total", "on_this"}


def test_legends_use_labels_of_their_series(families: list[Metric]) -> None:
    known = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            groups = re.findall(r"by *\(([^)]*)\)", target["expr"])
            kept = {label.strip() for group in groups for label in group.split(",")} if groups else None
            have = kept if kept is not None else set.union(*(known[n] for n in names(target["expr"]))) | SCRAPED
            assert wanted <= have, target


def test_grafana_provisions_the_board() -> None:
    assert {"uid", "title", "schemaVersion", "panels", "time"} <= BOARD.keys()
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers) > 10
    folder = ROOT / "monitoring" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"]
    for panel in BOARD["panels"]:
        assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert {x for x, _ in taken} == set(range(24))
    (provider,) = yaml.safe_load((folder / "dashboards" / "strata.yml").read_text("utf-8"))["providers"]
    mounts = [mount.split(":") for mount in COMPOSE["services"]["grafana"]["volumes"]]
    assert [ROOT / mount[0] for mount in mounts if mount[1] == provider["options"]["path"]] == [
        ROOT / "monitoring" / "grafana" / "boards"
    ]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert COMPOSE["services"][host]["ports"] == [f"127.0.0.1:{port}:{port}"]


# ---- alerts and the page that says what to do


def rows_of(head: str) -> list[list[str]]:
    """Returns the rows of the table of docs/operations.md that begins with this head, as cells."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page[page.index(f"| {head} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def alerts_in(cell: str) -> set[str]:
    return set(re.findall(r"`(Strata\w+)`", cell))


def test_each_alert_has_a_line_that_says_what_to_do_and_each_line_an_alert() -> None:
    lines = rows_of("alert")
    assert [line[0] for line in lines] == [f"`{name}`" for name in rules()]
    assert all(len(line) == 3 and all(line) for line in lines)
    assert all({"severity"} == rule["labels"].keys() and rule["annotations"]["summary"] for rule in rules().values())


def test_each_kind_of_failure_of_a_record_has_an_alert_or_a_reason_why_not() -> None:
    lines = [(re.findall(r"`([a-z_.]+)`", cells[0]), cells[1]) for cells in rows_of("reason, event or status")]
    named = [name for found, _ in lines for name in found]
    assert sorted(named) == sorted([*REASONS, *WARNINGS, *FINAL, "round.retried"])
    for found, answer in lines:
        assert alerts_in(answer) <= rules().keys()
        assert alerts_in(answer) or answer.startswith("none: "), found
        asked = {value for name in alerts_in(answer) for value in values_in(rules()[name]["expr"])}
        counted = set(found) - {"round.retried", "node.lost", "node.left_out"}  # these have metrics of their own
        assert not alerts_in(answer) or counted <= asked, found


def values_in(expression: str) -> set[str]:
    """Returns the values of labels in an expression."""
    return {value for text in re.findall(r"=~?\"([^\"]*)\"", expression) for value in text.split("|")}


def test_alerts_on_reasons_share_no_reason() -> None:
    asked = [value for rule in rules().values() if "reason" in rule["expr"] for value in values_in(rule["expr"])]
    assert len(asked) == len(set(asked)) > 30


# ---- Prometheus and Compose


def test_prometheus_scrapes_every_tier_of_compose_at_its_port() -> None:
    config = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text(encoding="utf-8"))
    services, asked = COMPOSE["services"], set()
    for job in config["scrape_configs"]:
        found = [target.partition(":")[::2] for group in job.get("static_configs", []) for target in group["targets"]]
        found += [(name, str(group["port"])) for group in job.get("dns_sd_configs", []) for name in group["names"]]
        for service, port in found:
            assert services[service]["environment"]["HEALTH_PORT"] == port
            asked.add(service)
    tier = {name for name, service in services.items() if "HEALTH_PORT" in service.get("environment", {})}
    assert asked == tier
    written = services["prometheus"]["command"][0]
    assert {job["authorization"]["credentials_file"] for job in config["scrape_configs"]} == {"/tmp/metrics-token"}  # noqa: S108
    assert "> /tmp/metrics-token &&" in written
    for name in (*sorted(tier), "prometheus"):
        assert ("STRATA_METRICS_TOKEN", "${STRATA_METRICS_TOKEN:-}") in services[name]["environment"].items()


def test_prometheus_of_compose_reads_the_alerts_and_uses_the_names_of_their_jobs() -> None:
    for name in ("prometheus.yml", "prometheus-secure.yml"):
        config = yaml.safe_load((ROOT / "monitoring" / name).read_text(encoding="utf-8"))
        assert config["rule_files"] == ["alerts.yml"]
        assert {job["job_name"] for job in config["scrape_configs"]} == JOBS - {"tiers"}
    assert "./monitoring/alerts.yml:/etc/prometheus/alerts.yml:ro" in COMPOSE["services"]["prometheus"]["volumes"]
    assert "job_name: tiers" in PAGE


def test_the_secure_configuration_asks_the_same_targets_over_tls() -> None:
    plain, secure = (
        yaml.safe_load((ROOT / "monitoring" / name).read_text(encoding="utf-8"))
        for name in ("prometheus.yml", "prometheus-secure.yml")
    )
    for job in secure["scrape_configs"]:
        assert job.pop("scheme") == "https"
        assert job.pop("tls_config") == {"ca_file": "/join/authority.pem", "server_name": ANY_NODE}
    assert secure == plain
    assert "join-public:/join:ro,nocopy" in COMPOSE["services"]["prometheus"]["volumes"]
    assert "join-public:/join/public" in COMPOSE["services"]["cloud"]["volumes"]


def test_monitoring_starts_only_on_request_and_listens_on_this_machine_only() -> None:
    for name in ("prometheus", "grafana"):
        service = COMPOSE["services"][name]
        assert service["profiles"] == ["monitoring"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
    grafana = COMPOSE["services"]["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert not [name for name in grafana if "PASSWORD" in name or "SECRET" in name]
