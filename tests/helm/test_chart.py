"""The chart: helm takes values of each kind and refuses wrong ones, and Kubernetes knows what is rendered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.core.versions import VERSION
from tests.helm.chart import CHART, MATRIX, SECURE, container, helm, of_kind, refusal, render, run, workloads

pytestmark = pytest.mark.helm
VERSIONS = ("1.25", "1.37")
"""The oldest version of Kubernetes that the chart is for, and the newest that the validator knows."""


@pytest.mark.parametrize("name", MATRIX)
def test_helm_lints_the_chart_with_values_of_each_kind(name: str) -> None:
    done = run("lint", "--strict", CHART, given=MATRIX[name])
    assert (done.returncode, re.findall(r"\[(?:WARNING|ERROR)\].*", done.stdout)) == (0, []), done.stdout + done.stderr


def test_kubernetes_knows_all_that_is_rendered(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate", reason="`make helm-test` installs the validator")
    objects = {json.dumps(found): found for values in MATRIX.values() for found in render(values)}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects.values()), encoding="utf-8")
    versions = [word for version in VERSIONS for word in ("--kubernetes-version", version)]
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", *versions, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    lines = done.stdout.splitlines()
    other = [line for line in lines if not line.startswith("INFO ") and "kind ServiceMonitor" not in line]
    assert (done.returncode, other) == (0, []), done.stderr
    assert len(lines) == len(VERSIONS) * len(objects)


def test_the_oldest_version_of_kubernetes_is_the_one_that_was_checked() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    done = run("template", "strata", CHART, "--kube-version", "1.24.0")
    assert "incompatible with Kubernetes" in done.stderr


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"edges": {"replicas": 3}}, "additional properties 'edges' not allowed"),
    ({"edge": {"replica": 3}}, "additional properties 'replica' not allowed"),
    ({"agents": [{"name": "device", "gpus": 1}]}, "additional properties 'gpus' not allowed"),
    ({"agents": [{"name": "Device"}]}, "does not match pattern"),
    ({"agents": [{"name": "edge"}]}, "agents: the name edge is taken"),
    ({"agents": [{"name": "device"}, {"name": "device"}]}, "agents: the name device is taken"),
    ({"cloud": {"env": {"CLOUD_MAX_RUNS": 7}}}, "got number, want string"),
    ({"image": {"pullPolicy": "Sometimes"}}, "value must be one of"),
    ({"secure": {"enabled": True}}, "at '/secure/join/secret': minLength"),
    ({"secure": SECURE, "edge": {"storage": ""}}, "secure.enabled needs edge.storage"),
    ({"redis": {"url": "http://redis"}}, "does not match pattern"),
    ({"redis": {"url": "redis://redis", "urlSecret": "url"}}, "redis.url and redis.urlSecret are both set"),
    ({"plugins": {"packages": ["a", "b"], "configMap": "algs"}}, "at '/plugins/packages': maxItems"),
    ({"plugins": {"packages": ["a"], "configMap": "algs", "claim": "algs"}}, "at '/plugins/claim': maxLength"),
    ({"ingress": {"enabled": True}}, "at '/ingress/hosts': minItems"),
    ({"ingress": {"enabled": True, "hosts": ["a"]}}, "ingress.enabled needs networkPolicy.users"),
    ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.enabled needs networkPolicy.prometheus"),
    ({"logs": {"level": "LOUD"}}, "value must be one of"),
    ({"cloud": {"storage": "ten"}}, "does not match pattern"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_or_misspelt_value_is_refused(values: dict[str, Any], message: str) -> None:
    assert message in refusal(values)


def test_every_default_is_allowed_and_every_allowed_value_has_a_default() -> None:
    """Otherwise the file would not say what there is."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    found: list[tuple[str, set[str], set[str]]] = []

    def compare(path: str, given: Any, allowed: dict[str, Any]) -> None:
        allowed = schema["definitions"][allowed["$ref"].rpartition("/")[2]] if "$ref" in allowed else allowed
        if isinstance(given, dict) and "properties" in allowed:
            found.append((path, set(given), set(allowed["properties"]) - {"global"}))
            for name in given:
                compare(f"{path}.{name}", given[name], allowed["properties"][name])

    compare("", values, schema)
    assert len(found) > 15
    unlike = {path: given ^ allowed for path, given, allowed in found if given != allowed}
    assert {path for path in unlike if not path.endswith(".resources")} == set()


def test_an_agents_class_may_have_every_default_of_agents() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]
    assert schema["agents"]["items"]["properties"].keys() == schema["agentDefaults"]["properties"].keys() | {"name"}
    class_ = {"name": "small", "gpu": 0, "storage": "", "replicas": 0}
    objects = render({"agents": [class_], "agentDefaults": {"gpu": 2, "storage": "5Gi", "replicas": 4}})
    spec = workloads(objects)["strata-small"]["spec"]
    assert (spec["replicas"], "volumeClaimTemplates" in spec) == (0, False)
    assert "nvidia.com/gpu" not in str(spec)


def test_only_an_agent_that_dials_out_is_not_asked_at_a_port_that_it_does_not_have() -> None:
    classes = [{"name": "device"}, {"name": "far", "env": {"AGENT_CONNECT": "up"}}]
    found = workloads(render({"agents": classes, "edge": {"env": {"EDGE_CONNECT": "up"}}}))
    tiers = {name: container(found[f"strata-{name}"]) for name in ("cloud", "edge", "device", "far")}
    probes = {name: sum(key.endswith("Probe") for key in made) for name, made in tiers.items()}
    assert probes == {"cloud": 3, "edge": 3, "device": 3, "far": 0}


def test_notes_say_how_to_reach_the_cloud_and_warn() -> None:
    done = run(
        "install", "strata", CHART, "--dry-run=client", given={"secure": SECURE, "networkPolicy": {"enabled": False}}
    )
    assert "STRATA_URL=https://127.0.0.1:8000" in done.stdout, done.stderr
    assert "STRATA_CA_FILE" in done.stdout
    assert "WARNING: without network policies" in done.stdout


def test_a_secret_is_made_only_if_none_is_given() -> None:
    made = of_kind(render({}), "Secret")["strata-tokens"]["data"]
    assert sorted(made) == ["api-token", "metrics-token", "tier-token"]
    assert len(set(made.values())) == 3
    assert of_kind(render(MATRIX["given tokens"]), "Secret") == {}


def test_the_chart_can_be_packaged(tmp_path: Path) -> None:
    done = subprocess.run([helm(), "package", CHART, "-d", tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [f"stratafl-{VERSION}.tgz"]
