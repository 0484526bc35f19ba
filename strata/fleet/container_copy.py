"""Copying a container of Compose, with the next number, such that Compose treats the copy as its own.

Compose recognises its containers by labels alone: project, service, number, and a hash of the service's configuration,
by which it decides whether a container must be re-created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PROJECT, SERVICE = "com.docker.compose.project", "com.docker.compose.service"
NUMBER, ONE_OFF = "com.docker.compose.container-number", "com.docker.compose.oneoff"
HASH, REPLACED = "com.docker.compose.config-hash", "com.docker.compose.replace"
_ANONYMOUS = re.compile(r"[0-9a-f]{64}")


def number_of(labels: Mapping[str, str]) -> int:
    """The container's number in its service, 0 if its label is not a number."""
    text = labels.get(NUMBER, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def environment_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The environment of an inspected container."""
    return dict(line.split("=", 1) for line in found["Config"].get("Env") or () if "=" in line)


def name_of(found: Mapping[str, Any], number: int) -> str:
    """The name of the copy; Compose 1 separates the number by `_`, Compose 2 by `-`."""
    labels, name = found["Config"]["Labels"], str(found["Name"]).lstrip("/")
    match = re.fullmatch(r"(.+[-_])\d+", name)
    return f"{match[1] if match else f'{labels[PROJECT]}-{labels[SERVICE]}-'}{number}"


def copy_of(found: Mapping[str, Any], number: int, image: str) -> dict[str, Any]:
    """The request body that creates a copy: image, environment, command, limits, mounts and labels are the same.

    The copy has its own host name, its own number and its own anonymous volumes: two devices must not share state.

    Args:
        found: an inspected container.
        number: number of the copy.
        image: image of the copy.
    """
    config = {key: value for key, value in found["Config"].items() if value is not None}
    if found["Id"].startswith(config.get("Hostname") or "-"):
        del config["Hostname"]
    labels = {key: value for key, value in config["Labels"].items() if key != REPLACED}
    host, volumes = _mounts(found)
    return {
        **config,
        "Image": image,
        "Labels": {**labels, NUMBER: str(number)},
        "Volumes": {**(config.get("Volumes") or {}), **volumes},
        "HostConfig": host,
    }


def _mounts(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The host configuration without anonymous volumes, and the paths at which the copy gets new ones."""
    host = {key: value for key, value in found["HostConfig"].items() if key != "ContainerIDFile"}
    binds = {bind: bind.split(":") for bind in host.get("Binds") or ()}
    mounts = host.get("Mounts") or []
    own = [mount for mount in mounts if mount.get("Type") == "volume" and _is_anonymous(mount.get("Source"))]
    host["Binds"] = [bind for bind, parts in binds.items() if not _is_anonymous(parts[0])]
    host["Mounts"] = [mount for mount in mounts if mount not in own]
    targets = [parts[1] for parts in binds.values() if _is_anonymous(parts[0])] + [mount["Target"] for mount in own]
    return host, {target: {} for target in targets}


def _is_anonymous(source: str | None) -> bool:
    return not source or _ANONYMOUS.fullmatch(source) is not None


def endpoints_of(found: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The networks and aliases of a copy, the network it is created with first; addresses are not copied.

    Args:
        found: an inspected container.
        name: name of the copy; it replaces the original's name among the aliases.
    """
    networks = found["NetworkSettings"]["Networks"]
    first, old = found["HostConfig"].get("NetworkMode"), str(found["Name"]).lstrip("/")
    return {
        network: {
            "Aliases": [
                name if alias == old else alias
                for alias in networks[network].get("Aliases") or ()
                if not found["Id"].startswith(alias)
            ]
        }
        for network in sorted(networks, key=lambda network: (network != first, network))
    }
