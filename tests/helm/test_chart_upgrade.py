"""What an upgrade finds in the cluster it leaves: tokens that were drawn, and numbers that the fleet has set."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, NAMESPACE, RELEASE, Object, data_of, helm, of_kind, render

kmock = pytest.importorskip("kmock", reason="`make helm-test` installs kmock")
pytestmark = pytest.mark.helm
TOKENS = {name: f"drawn-before-{name}".encode() for name in ("tier-token", "api-token", "metrics-token")}


def installed(kind: str, api_version: str, name: str, **content: Any) -> Object:
    """An object that the release has made."""
    about = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": about}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def declare(server: Any, objects: list[Object]) -> None:
    """Let the server say that it knows these kinds; those of the core group as kmock itself does not."""
    core = []
    for api_version, kind in sorted({(found["apiVersion"], found["kind"]) for found in objects}):
        group, _, version = api_version.rpartition("/")
        singular = kind.lower()
        plural = f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"
        info = {"kind": kind, "namespaced": True, "verbs": ["get", "list", "patch", "create"]}
        if group:
            server.resources[kmock.resource(group, version, plural)] = kmock.ResourceInfo(singular=singular, **info)
        else:
            core.append({"name": plural, "singularName": singular, **info})
    known = {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "v1", "resources": core}
    server["get /api/v1"] << known


@pytest.mark.parametrize("fleet", [True, False])
async def test_tokens_stay_and_numbers_where_a_fleet_sets_them(tmp_path: Path, fleet: bool) -> None:
    values = {
        "fleet": {"enabled": fleet},
        "agents": [{"name": "device", "replicas": 6}, {"name": "added", "replicas": 3}],
    }
    data = {name: base64.b64encode(token).decode() for name, token in TOKENS.items()}
    async with kmock.KubernetesEmulator() as server, kmock.Server(server) as listening:
        declare(server, render(values))
        secret = installed("Secret", "v1", "strata-tokens", data=data)
        server.objects[kmock.resource("v1", "secrets"), NAMESPACE, "strata-tokens"] = secret
        for name, replicas in {"strata-device": 17, "strata-edge": 4, "strata-cloud": 0}.items():
            found = installed("StatefulSet", "apps/v1", name, spec={"replicas": replicas})
            server.objects[kmock.resource("apps", "v1", "statefulsets"), NAMESPACE, name] = found
        done = await asyncio.to_thread(_rendered, tmp_path, str(listening.url).rstrip("/"), values)
    assert done.returncode == 0, done.stderr
    objects = [found for found in yaml.safe_load_all(done.stdout) if found]
    assert data_of(of_kind(objects, "Secret")["strata-tokens"]) == TOKENS
    numbers = {name: found["spec"]["replicas"] for name, found in of_kind(objects, "StatefulSet").items()}
    kept = {"strata-device": 17, "strata-edge": 4} if fleet else {"strata-device": 6, "strata-edge": 2}
    assert numbers == {"strata-cloud": 1, "strata-redis": 1, "strata-added": 3, **kept}


def _rendered(folder: Path, url: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """The chart rendered by helm with a look into the cluster at this address."""
    names = {"cluster": "c", "user": "u"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": names}],
        "current-context": "x",
    }
    (folder / "config").write_text(json.dumps(config), encoding="utf-8")
    words = [
        "template",
        RELEASE,
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--dry-run=server",
        "--disable-openapi-validation",
    ]
    command = [helm(), *words, "--kubeconfig", str(folder / "config"), "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=120, check=False)
