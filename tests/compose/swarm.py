"""Shared parts of the Docker Swarm tests: a swarm on this machine and the stack in it."""

from __future__ import annotations

import os
import secrets
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx2
import pytest

from shared.identity.authority import load_authority
from shared.identity.join_tokens import load_tokens
from tests import waits
from tests.compose.stack import ROOT

T = TypeVar("T")
STACK = "stratafl-swarm-test"
IMAGE = "stratafl:swarm-test"
PORT = 18000
"""Where the cloud listens on this machine; below the ports that the kernel gives to others."""
OURS = (
    *("STRATA_", "CLOUD_", "EDGE_", "EDGES", "DEVICES", "AGENT_", "MLFLOW_"),
    *("CORE_NODE", "TIER_SECRET", "API_SECRET", "SECURE_SECRETS"),
)
"""Variables that docker-stack.yml reads; those of the current shell are removed."""


def docker(*words: str, given: str | None = None, limit_s: float = 120, env: Mapping[str, str] | None = None) -> str:
    """Returns the output of a docker command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    done = subprocess.run(
        ["docker", *words],
        cwd=ROOT,
        env={**kept, **(env or {})},
        input=given,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, f"docker {' '.join(words)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def until(what: str, condition: Callable[[], T]) -> T:
    """Wait for a condition of the stack; the error shows the tasks and the last lines of the logs."""
    try:
        return waits.until(what, condition, every_s=0.5)
    except waits.Hang as hang:
        raise waits.Hang(f"{hang}\n{_diagnosis()}") from None


def _diagnosis() -> str:
    """Returns the tasks and the last log lines of a container of each service, preferably a failed one."""
    names = docker("ps", "-a", "--format", "{{.Names}}", "--filter", "status=exited", *_mine()).split()[:4]
    looks = [["stack", "ps", STACK], *(["logs", "--tail", "20", name] for name in names + tasks("cloud"))]
    done = [
        subprocess.run(["docker", *look], capture_output=True, text=True, timeout=60, check=False) for look in looks
    ]
    return "\n".join(one.stdout[-6000:] + one.stderr[-3000:] for one in done)


@contextmanager
def swarm() -> Iterator[None]:
    """A swarm managed by this machine; it is left again if it was created here. Skips if that is impossible."""
    look = ["docker", "info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.ControlAvailable}}"]
    try:
        done = subprocess.run(look, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("there is no docker command")
    if done.returncode:
        pytest.skip("no Docker engine answers")
    match done.stdout.split():
        case ["active", "true"]:
            yield
        case ["inactive", _]:
            docker("swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", "127.0.0.1:2377")
            try:
                yield
            finally:
                docker("swarm", "leave", "--force")
        case state:
            pytest.skip(f"this machine's swarm takes no orders here: {' '.join(state)}")


@contextmanager
def stack(authority: Path | None = None, **settings: str) -> Iterator[httpx2.Client]:
    """Deploys the stack, yields a client of its cloud with the token, and removes stack, volumes and secrets.

    With the folder of an authority, nodes show certificates.
    """
    named = {"TIER_SECRET": f"{STACK}-tier", "API_SECRET": f"{STACK}-api"}
    remove()
    index = os.environ.get("TORCH_INDEX")
    args = ["--build-arg", f"TORCH_INDEX={index}"] if index else []
    docker("build", "-q", "-t", IMAGE, *args, ".", limit_s=900)
    token = secrets.token_hex(32)
    try:
        docker("secret", "create", named["TIER_SECRET"], "-", given=secrets.token_hex(32))
        docker("secret", "create", named["API_SECRET"], "-", given=token)
        env = {**settings, **named, "STRATA_IMAGE": IMAGE, "STRATA_PORT": str(PORT)}
        files = ["-c", "docker-stack.yml"]
        if authority is not None:
            _create_secrets(authority)
            env["SECURE_SECRETS"] = STACK
            files += ["-c", "docker-stack.secure.yml"]
        # The image is local and never requested from a registry.
        docker("stack", "deploy", "--resolve-image", "never", *files, STACK, env=env)
        headers, url = {"Authorization": f"Bearer {token}"}, f"{'https' if authority else 'http'}://127.0.0.1:{PORT}"
        verify = ssl.create_default_context(cafile=str(authority / "authority.pem")) if authority else True
        with httpx2.Client(base_url=url, headers=headers, timeout=30, trust_env=False, verify=verify) as client:
            yield client
    finally:
        remove()


def _create_secrets(authority: Path) -> None:
    files = {
        "authority_key": "authority-key.pem",
        "authority_certificate": "authority.pem",
        "join_secret": "join-secret",
    }
    for name, file in files.items():
        docker("secret", "create", f"{STACK}_{name}", str(authority / file))
    tokens = load_tokens(authority, load_authority(authority).fingerprint)
    for node_class in ("edge", "device"):
        docker("secret", "create", f"{STACK}_join_{node_class}", "-", given=str(tokens.of(node_class)))


def remove() -> None:
    """Remove the services and, after its containers have ended, the volumes and secrets."""
    until("the end of the stack's containers and networks", _is_removed)
    for kind, names in (("volume", volumes()), ("secret", _secrets())):
        if names:
            docker(kind, "rm", *names)


def _is_removed() -> bool:
    """Asks for the removal and looks for what is left: a network stays where one of the last tasks still uses it."""
    done = subprocess.run(["docker", "stack", "rm", STACK], capture_output=True, timeout=120, check=False)
    return done.returncode == 0 and not leftovers()


def leftovers() -> list[str]:
    """Returns the containers and networks of the stack."""
    return docker("ps", "-aq", *_mine()).split() + docker("network", "ls", "-q", *_mine()).split()


def volumes() -> list[str]:
    """Returns the volumes of the stack on this machine."""
    return docker("volume", "ls", "-q", *_mine()).split()


def _secrets() -> list[str]:
    return docker("secret", "ls", "-q", "--filter", f"name={STACK}").split()


def _mine() -> tuple[str, str]:
    return "--filter", f"label=com.docker.stack.namespace={STACK}"


def tasks(service: str) -> list[str]:
    """Returns the ids of the running containers of a service."""
    label = f"label=com.docker.swarm.service.name={STACK}_{service}"
    return docker("ps", "-q", "--no-trunc", "--filter", label).split()


def scale(service: str, number: int) -> None:
    """Set the number of tasks of a service."""
    docker("service", "scale", "-d", f"{STACK}_{service}={number}")
