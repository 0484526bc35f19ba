"""What the rendered objects allow: users and files of pods, secrets, who reaches whom, what the fleet may do."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud_server.settings import CloudSettings
from device_agent.settings import AgentSettings
from edge_server.settings import EdgeSettings
from shared.identity.names import CLASSES
from shared.service.settings import CommonSettings, Environment
from strata.fleet.settings import FleetSettings
from tests.helm.chart import MATRIX, Object, component, container, of_kind, render, selects, workloads

pytestmark = pytest.mark.helm
SETTINGS: dict[str, type[Environment]] = {
    "cloud": CloudSettings,
    "edge": EdgeSettings,
    "agent": AgentSettings,
    "fleet": FleetSettings,
}
MLFLOW = {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
CALLERS = {
    "redis": {"cloud", "edge"},
    "cloud": {"edge", "agent", "fleet"},
    "edge": {"cloud", "agent"},
    "agent": {"cloud", "edge"},
    "fleet": set[str](),
}
"""By component, whose pods reach it: those that call it (docs/how-to/secure.md)."""
rendered = functools.cache(lambda name: render(MATRIX[name]))


@pytest.fixture(params=MATRIX)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return list(rendered(request.param))


def secrets_of(workload: Object) -> Iterator[tuple[str, str]]:
    """Name and entry of each secret that the pods of a workload see."""
    for volume in workload["spec"]["template"]["spec"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", ()):
            yield from ((source["secret"]["name"], item["key"]) for item in source["secret"]["items"])
    for variable in container(workload).get("env", ()):
        if found := variable.get("valueFrom", {}).get("secretKeyRef"):
            yield found["name"], found["key"]


def variables(workload: Object) -> dict[str, str]:
    """The variables of a workload's container with their values; one from elsewhere has an example."""
    return {found["name"]: str(found.get("value", "a-value")) for found in container(workload).get("env", ())}


# ---- pods


def test_no_pod_has_more_rights_than_it_needs(objects: list[Object]) -> None:
    """Those of the Pod Security Standard `restricted`, and nothing of the root file system can be written."""
    for name, workload in workloads(objects).items():
        pod, one = workload["spec"]["template"]["spec"], container(workload)
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
        assert security["runAsUser"] > 0
        assert security["runAsGroup"] > 0
        assert pod["enableServiceLinks"] is False, name
        assert pod["automountServiceAccountToken"] is (component(workload) == "fleet"), name
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
        kinds = {kind for volume in pod["volumes"] for kind in volume} - {"name"}
        assert kinds <= {"projected", "emptyDir", "persistentVolumeClaim", "configMap"}, name
        written = {mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")}
        assert written == {"/data", "/tmp"}, name  # noqa: S108


def test_every_server_is_probed_where_it_listens(objects: list[Object]) -> None:
    for name, workload in workloads(objects).items():
        one = container(workload)
        probes = [one[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in one]
        if component(workload) == "fleet":
            assert probes == []
            continue
        assert len(probes) == 3, name
        (port,) = one["ports"]
        if component(workload) != "redis":
            prefix = component(workload).upper()
            assert variables(workload)[f"{prefix}_PORT"] == str(port["containerPort"])
            secure = variables(workload).get("STRATA_SECURE") == "1"
            assert {probe["httpGet"]["scheme"] for probe in probes} == {"HTTPS" if secure else "HTTP"}
            assert {probe["httpGet"]["port"] for probe in probes} == {port["name"]}


def test_names_fit_and_workloads_select_their_own_pods_alone(objects: list[Object]) -> None:
    found = workloads(objects)
    for name, workload in found.items():
        assert len(name) <= 52, "a StatefulSet labels its pods with its name and a hash"
        selector = workload["spec"]["selector"]["matchLabels"]
        assert [other for other in found if selects(selector, found[other])] == [name]
        assert container(workload)["resources"] is not None
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert budgets.keys() == of_kind(objects, "StatefulSet").keys()
    for name, budget in budgets.items():
        assert [other for other in found if selects(budget["spec"]["selector"]["matchLabels"], found[other])] == [name]


def test_edges_are_spread_over_hosts(objects: list[Object]) -> None:
    (edge,) = (found for found in workloads(objects).values() if component(found) == "edge")
    (spread,) = edge["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert selects(spread["labelSelector"]["matchLabels"], edge)


def test_every_edge_and_agent_has_the_name_of_its_pod_and_edges_keep_their_folder(objects: list[Object]) -> None:
    for workload in workloads(objects).values():
        if component(workload) in ("edge", "agent"):
            named = {found["name"]: found.get("valueFrom") for found in container(workload)["env"]}
            field = {"fieldRef": {"fieldPath": "metadata.name"}}
            assert named[f"{component(workload).upper()}_NAME"] == field
        if component(workload) in ("edge", "cloud"):
            (claim,) = workload["spec"]["volumeClaimTemplates"]
            assert claim["metadata"]["name"] == "data"


def test_a_gpu_is_asked_for_by_its_class_alone() -> None:
    found = workloads(rendered("classes of agents"))
    limits = {name: container(workload)["resources"].get("limits", {}) for name, workload in found.items()}
    assert limits.pop("strata-gpu") == {"memory": "2Gi", "nvidia.com/gpu": 1}
    assert "nvidia" not in str(limits)


# ---- Services


def test_a_service_leads_to_the_pods_of_one_component_and_names_in_settings_are_services(objects: list[Object]) -> None:
    services, found = of_kind(objects, "Service"), workloads(objects)
    targets = {}
    for name, service in services.items():
        chosen = [workload for workload in found.values() if selects(service["spec"]["selector"], workload)]
        (port,) = service["spec"]["ports"]
        own_component = service["metadata"]["labels"]["app.kubernetes.io/component"]
        assert {component(workload) for workload in chosen} <= {own_component}
        for workload in chosen:
            (own,) = container(workload)["ports"]
            assert (own["name"], own["containerPort"]) == (port["targetPort"], port["port"])
        assert (service["spec"].get("clusterIP") == "None") is not name.endswith("-api")
        targets[name] = port["port"]
    for workload in found.values():
        if workload["kind"] == "StatefulSet":
            assert selects(services[workload["spec"]["serviceName"]]["spec"]["selector"], workload)
        for name, value in variables(workload).items():
            if name.endswith("_URL") and value != "a-value" and "example" not in value:
                host, _, port = value.partition("://")[2].partition("/")[0].partition(":")
                assert targets[host] == int(port), (name, value)


def test_the_ingress_leads_to_the_users_service() -> None:
    objects = rendered("Ingress")
    (ingress,) = of_kind(objects, "Ingress").values()
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    service = of_kind(objects, "Service")[backend["name"]]
    assert (service["spec"]["ports"][0]["name"], service["spec"]["type"]) == (backend["port"]["name"], "LoadBalancer")


@pytest.mark.parametrize("name", ["monitored", "monitored and secure"])
def test_prometheus_is_led_to_each_tier_once_with_its_own_token(name: str) -> None:
    objects = rendered(name)
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = of_kind(objects, "Service")
    chosen = {each: found for each, found in services.items() if wanted.items() <= found["metadata"]["labels"].items()}
    assert sorted(chosen) == ["strata-agents", "strata-cloud", "strata-edge"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "strata-tokens", "key": "metrics-token"}
    assert {service["spec"]["ports"][0]["name"] for service in chosen.values()} == {endpoint["port"]}
    assert (endpoint.get("scheme"), "tlsConfig" in endpoint) == (("https", True) if "secure" in name else (None, False))


# ---- networks


def reach(objects: list[Object], source: Object, target: Object) -> bool:
    """Whether policies let the pods of one workload reach those of another, on the port where these listen."""
    found = [policy["spec"] for policy in of_kind(objects, "NetworkPolicy").values()]
    policies = [policy for policy in found if selects(policy["podSelector"]["matchLabels"], target)]
    assert all("Ingress" in policy["policyTypes"] for policy in policies)
    ports = {port["containerPort"] for port in container(target).get("ports", ())}
    rules = [rule for policy in policies for rule in policy.get("ingress", ())]
    rules = [rule for rule in rules if ports == {port["port"] for port in rule["ports"]}]
    peers = [peer.get("podSelector", {}).get("matchLabels") for rule in rules for peer in rule["from"]]
    return not policies or any(labels is not None and selects(labels, source) for labels in peers)


def test_pods_are_reached_by_those_that_call_them(objects: list[Object]) -> None:
    """As in Compose, devices do not reach Redis."""
    found = workloads(objects).values()
    for target in found:
        callers = {component(source) for source in found if reach(objects, source, target)}
        there = {component(source) for source in found}
        expected = CALLERS[component(target)] & there if of_kind(objects, "NetworkPolicy") else there
        assert callers == expected, component(target)


def test_users_reach_the_cloud_alone_and_prometheus_the_tiers() -> None:
    def named(name: str) -> set[str]:
        policies = of_kind(rendered(name), "NetworkPolicy")
        return {each for each, found in policies.items() if "namespaceSelector" in str(found["spec"])}

    assert named("default") == set()
    assert named("Ingress") == {"strata-cloud"}
    assert named("monitored") == {"strata-cloud", "strata-edge", "strata-agent"}


# ---- secrets


def test_a_component_sees_its_own_secrets_alone(objects: list[Object]) -> None:
    for name, workload in workloads(objects).items():
        seen = {key for _, key in secrets_of(workload)}
        kind, secure = component(workload), variables(workload).get("STRATA_SECURE") == "1"
        tiers = {"cloud", "edge", "agent"}
        assert ("api-token" in seen) == (kind == "cloud"), name
        assert ("tier-token" in seen) == (kind in {*tiers, "fleet"} and not secure), name
        assert ("metrics-token" in seen) == (kind in tiers), name
        authority = {"authority-key.pem", "tls.key", "join-secret"} & seen
        assert len(authority) == (2 if kind == "cloud" and secure else 0), name
        joining = {"edge": {"edge"}, "agent": {"device"}, "fleet": {"fleet"}}.get(kind, set()) if secure else set()
        assert seen & set(CLASSES) == joining, name


def test_no_secret_is_in_the_environment_but_those_that_are_read_there(objects: list[Object]) -> None:
    for workload in workloads(objects).values():
        given = container(workload).get("env", ())
        taken = {found["name"] for found in given if "secretKeyRef" in found.get("valueFrom", {})}
        assert taken <= {*MLFLOW, "CLOUD_REDIS_URL", "EDGE_REDIS_URL"}


# ---- the fleet


def test_the_fleet_may_scale_edges_and_agents_and_nothing_else(objects: list[Object]) -> None:
    found = workloads(objects)
    if not (roles := of_kind(objects, "Role")):
        assert not of_kind(objects, "RoleBinding", "ServiceAccount", "Deployment")
        return
    ((name, role),) = roles.items()
    rule = dict(role["rules"][0])
    assert len(role["rules"]) == 1
    scaled = {each for each, workload in found.items() if component(workload) in ("edge", "agent")}
    assert set(rule.pop("resourceNames")) == scaled
    assert rule == {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "verbs": ["get", "patch"]}
    (binding,) = of_kind(objects, "RoleBinding").values()
    assert binding["roleRef"]["name"] == name
    (subject,) = binding["subjects"]
    users = [each for each, workload in found.items() if "serviceAccountName" in workload["spec"]["template"]["spec"]]
    assert users == [each for each, workload in found.items() if component(workload) == "fleet"]
    assert found[users[0]]["spec"]["template"]["spec"]["serviceAccountName"] == subject["name"]
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")


def test_the_fleet_names_the_sets_and_the_devices_of_an_agent(objects: list[Object]) -> None:
    for workload in workloads(objects).values():
        if component(workload) == "fleet" and variables(workload)["FLEET_SETS"]:
            found = variables(workload)
            sizes = dict(each.split(":") for each in found["FLEET_SETS"].split(","))
            agents = [each for each in workloads(objects).items() if component(each[1]) == "agent"]
            assert {found["FLEET_SET_PREFIX"] + name: size for name, size in sizes.items()} == {
                name: variables(each)["AGENT_DEVICES"] for name, each in agents
            }


# ---- settings


def check_name(kind: str, name: str) -> None:
    """Check that a variable is a setting of this component, or of all."""
    prefix, _, field = name.partition("_")
    own: dict[str, type[Environment]] = {kind.upper(): SETTINGS[kind], "STRATA": CommonSettings}
    settings = own.get(prefix)
    known = {*settings.model_fields, *settings.also_known} if settings else set()
    assert field.lower() in known or (kind == "cloud" and name in MLFLOW), (kind, name)


def test_every_variable_is_a_setting_that_its_process_accepts(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith(("STRATA_", "CLOUD_", "EDGE_", "AGENT_", "FLEET_"))]:
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text("a-token", encoding="ascii")
    for workload in workloads(objects).values():
        kind = component(workload)
        if kind == "redis":
            continue
        with monkeypatch.context() as patched:
            for name, value in variables(workload).items():
                check_name(kind, name)
                is_secret = name.endswith("REDIS_URL") and value == "a-value"
                example = "redis://:password@redis:6379/0" if is_secret else value
                patched.setenv(name, str(token) if name.endswith("_FILE") else example)
            found: Any = SETTINGS[kind]()
            assert found.common.secure == ("STRATA_SECURE" in variables(workload))
            if kind != "fleet":
                assert found.port == container(workload)["ports"][0]["containerPort"]
                assert str(found.state_dir).startswith("/data/")


def test_a_users_setting_replaces_the_charts() -> None:
    found = {component(workload): variables(workload) for workload in workloads(rendered("placed")).values()}
    assert (found["cloud"]["CLOUD_HOST"], found["cloud"]["CLOUD_MAX_CONCURRENT_RUNS"]) == ("::", "2")
    assert found["edge"]["EDGE_HOST"] == "0.0.0.0"  # noqa: S104


def test_the_image_has_the_user_and_the_folders_of_the_pods() -> None:
    dockerfile = (Path(__file__).resolve().parents[2] / "Dockerfile").read_text(encoding="utf-8")
    compose = yaml.safe_load((Path(__file__).resolve().parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))
    for workload in workloads(rendered("default")).values():
        pod = workload["spec"]["template"]["spec"]
        if component(workload) == "redis":
            assert container(workload)["image"] == compose["services"]["redis"]["image"]
        else:
            assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile
            assert container(workload)["image"].startswith(compose["services"]["cloud"]["image"].partition(":")[0])
