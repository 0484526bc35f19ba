"""A fake container engine in dictionaries, with the requests that the fleet sends and their answers."""

from __future__ import annotations

from typing import Any

from docker.errors import APIError, ImageNotFound

IMAGE, OLD_IMAGE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
VOLUME = "f" * 64


def inspected(number: int, *, service: str = "device", project: str = "p", **env: str) -> dict[str, Any]:
    """Returns a container as `docker inspect` shows it, created by Compose 1.29 and recreated once."""
    identity = f"{number:x}".rjust(2, "0") * 32
    labels = {
        "com.docker.compose.project": project,
        "com.docker.compose.service": service,
        "com.docker.compose.container-number": str(number),
        "com.docker.compose.oneoff": "False",
        "com.docker.compose.config-hash": "h",
        "com.docker.compose.replace": "an older one",
    }
    return {
        "Id": identity,
        "Created": 100 + number,
        "Name": f"/{project}_{service}_{number}",
        "Image": IMAGE,
        "State": "running",
        "Config": {
            "Hostname": identity[:12],
            "Image": "stratafl:local",
            "Env": ["AGENT_DEVICES=1", *(f"{key}={value}" for key, value in env.items())],
            "Cmd": ["python", "-m", "device_agent"],
            "Labels": labels,
            "Volumes": {"/data": {}},
            "OnBuild": None,
        },
        "HostConfig": {
            "Binds": [f"{VOLUME}:/data:rw", "/sets:/datasets:ro", "shared:/shared:rw"],
            "NetworkMode": f"{project}_default",
            "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
            "Init": True,
            "ContainerIDFile": "",
        },
        "NetworkSettings": {"Networks": {
            "b_extra": {"Aliases": ["device", identity[:12]], "IPAddress": "10.0.0.2"},
            f"{project}_default": {"Aliases": ["device", identity[:12]], "IPAddress": "10.0.1.2"},
        }},
    }  # fmt: skip


class FakeEngine:
    """Containers by id; `did` lists the requests."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self.found = {row["Id"]: row for row in found}
        self.images = {"stratafl:local": IMAGE}
        self.did: list[tuple[str, Any]] = []
        self.refuses: str | None = None

    def containers(self, *, all: bool, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        assert all
        asked = dict(label.split("=", 1) for label in filters["label"])
        return [
            {"Id": key, "State": row["State"], "ImageID": row["Image"], "Created": row["Created"],
             "Labels": row["Config"]["Labels"]}
            for key, row in self.found.items()
            if asked.items() <= row["Config"]["Labels"].items()
        ]  # fmt: skip

    def inspect_container(self, container: str) -> dict[str, Any]:
        return next(row for key, row in self.found.items() if key.startswith(container))

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.images:
            raise ImageNotFound(name)
        return {"Id": self.images[name]}

    def create_container_from_config(self, body: dict[str, Any], name: str) -> dict[str, str]:
        number = int(body["Labels"]["com.docker.compose.container-number"])
        made = inspected(number, service=body["Labels"]["com.docker.compose.service"])
        made |= {"Name": f"/{name}", "State": "created"}
        self.found[made["Id"]] = made
        self.did.append(("create", (name, body)))
        return {"Id": made["Id"]}

    def connect_container_to_network(self, container: str, network: str, *, aliases: list[str]) -> None:
        self.did.append(("connect", (container, network, aliases)))

    def start(self, container: str) -> None:
        if self.refuses:
            raise APIError(self.refuses)
        self.found[container]["State"] = "running"
        self.did.append(("start", container))

    def stop(self, container: str, *, timeout: int) -> None:
        if self.refuses:
            raise APIError(self.refuses)
        self.found[container]["State"] = "exited"
        self.did.append(("stop", (container, timeout)))
