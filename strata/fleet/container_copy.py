"""A container that Compose takes for its own: a copy of a sibling with the next number.

Compose knows its containers by labels alone: project, service, number, and a hash of the service's configuration by
which it sees whether one must be made anew.
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
    """The container's number in its service, 0 if its label is none."""
    text = labels.get(NUMBER, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def environment_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The environment of an inspected container."""
    return dict(line.split("=", 1) for line in found["Config"].get("Env") or () if "=" in line)


def name_of(found: Mapping[str, Any], number: int) -> str:
    """The sibling's name with another number; Compose 1 separates by `_`, Compose 2 by `-`."""
    labels, name = found["Config"]["Labels"], str(found["Name"]).lstrip("/")
    match = re.fullmatch(r"(.+[-_])\d+", name)
    return f"{match[1] if match else f'{labels[PROJECT]}-{labels[SERVICE]}-'}{number}"


def sibling_of(found: Mapping[str, Any], number: int, image: str) -> dict[str, Any]:
    """The body that creates a sibling: image, environment, command, limits, mounts and labels are the same.

    Its own are host name, number, and each volume without a name: two devices must not share their state.

    Args:
        found: an inspected container.
        number: of the new one.
        image: what it is made from.
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
    """The sibling's host configuration without its anonymous volumes, and where new ones of these belong."""
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
    """The sibling's networks with its aliases there, the one that it was made with first; addresses are not copied.

    Args:
        found: an inspected container.
        name: of the new one, which is its alias where the other's name was one.
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
