"""The image that Compose builds: what it holds, what it says of itself, and what it leaves out."""

from __future__ import annotations

import json

import httpx2
import pytest

from tests.compose.stack import docker

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]
IMAGE = "stratafl:local"
PACKAGES = "import importlib.metadata, json; print(json.dumps([d.name for d in importlib.metadata.distributions()]))"
NOT_COMPILED = """
import importlib, json, os, sys
from importlib.util import cache_from_source
from strata.launcher.environment import Modules
for name in Modules().preloaded:
    importlib.import_module(name)
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
files = sorted(file for file in files if file.endswith(".py") and file.startswith(("/venv/", "/app/")))
assert len(files) > 1000, files
print(json.dumps([file for file in files if not os.path.exists(cache_from_source(file))]))
"""
INSTALLERS = "command -v gcc strip || ls /venv/bin/pip /build || ls -d /venv/lib/python3.11/site-packages/torch/include"


def inside(*words: str) -> str:
    return docker("run", "--rm", "--network", "none", IMAGE, *words)


def test_the_list_of_packages_names_what_is_installed(stack: httpx2.Client) -> None:
    listed = json.loads(inside("cat", "/app/sbom.cdx.json"))
    assert listed["bomFormat"] == "CycloneDX"
    names = {component["name"].lower() for component in listed["components"]}
    installed = {name.lower() for name in json.loads(inside("python", "-c", PACKAGES))}
    assert {"torch", "fastapi", "redis"} <= names
    assert installed - names == {"stratafl"}


def test_whatever_the_tiers_import_is_compiled(stack: httpx2.Client) -> None:
    """The user that runs cannot write beside the sources: a file left out would be compiled at each start."""
    assert json.loads(inside("python", "-c", NOT_COMPILED)) == []


def test_installers_and_compilers_stay_behind(stack: httpx2.Client) -> None:
    assert inside("sh", "-c", f"({INSTALLERS}) 2>/dev/null || true").split() == []
