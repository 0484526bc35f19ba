"""A rendered pod as a real process in namespaces of its own, as a container runtime would start it.

Its root is this machine's, read-only, with the pod's volumes mounted where the pod has them; its user, groups,
capabilities, environment and command are the pod's. Needs root, `ip netns`, and overlay mounts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.helm.chart import NAMESPACE, ROOT, Object

TOOLS = ("ip", "nsenter", "unshare", "setpriv", "chroot", "mount")
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
BIN = Path(sys.prefix) / "bin"


def check_tools() -> None:
    """Skips where pods cannot be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or os.getuid() != 0 or missing:
        pytest.skip(f"pods need root on Linux and {', '.join(TOOLS)}; missing: {', '.join(missing) or 'root'}")
    if not (BIN / "redis-server").exists():
        pytest.skip("pods need the redis-server of the extra `local`")
    tried = (
        "ip netns add stratafl-try && ip netns del stratafl-try && mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w "
        "&& mount -t overlay none -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt"
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", tried], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine makes no network namespaces or overlays: {done.stderr.strip()[:200]}")


def image_environment() -> dict[str, str]:
    """The variables of the image (Dockerfile), with this environment's Python first on the path."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2].replace("\\\n", " ")
    lines = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    found = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    assert found["STRATA_DATA_DIR"] == "/datasets"
    return {**found, "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"}


@dataclass(frozen=True)
class Volumes:
    """What volumes are made of: secrets and ConfigMaps by name, and the folder in which claims are kept."""

    folder: Path
    secrets: Mapping[str, Mapping[str, bytes]]
    config_maps: Mapping[str, Mapping[str, bytes]]
    account: Mapping[str, bytes]


@dataclass
class Pod:
    """A pod with one container.

    Attributes:
        name: of the pod.
        spec: as rendered.
        claims: names of the claims that the pod's StatefulSet makes for it.
        address: in the pods' network.
    """

    name: str
    labels: Mapping[str, str]
    spec: Object
    claims: tuple[str, ...]
    volumes: Volumes
    address: str
    netns: str
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.volumes.folder / "pods" / f"{self.name}-{self.address}"
        self.folder.mkdir(parents=True)
        self.log, self.hosts = self.folder / "log", self.folder / "hosts"
        (self.container,) = self.spec["containers"]

    # ---- the process

    def start(self) -> None:
        """Start the container's process, whose network namespace must be there."""
        script = self.folder / "init.sh"
        script.write_text("\n".join(["set -e", *self._script(self.folder / "root")]) + "\n", encoding="utf-8")
        apart = ["nsenter", f"--net=/run/netns/{self.netns}", "unshare", "--mount", "--uts", "--ipc"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*apart, "sh", str(script)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _script(self, root: Path) -> Iterator[str]:
        """The lines that make the pod's root and become its process."""
        security, r = self.spec["securityContext"], shlex.quote(str(root))
        uid, gid, group = (security[key] for key in ("runAsUser", "runAsGroup", "fsGroup"))
        yield f"hostname {self.name}"
        yield "mount --make-rprivate /"
        yield f"mkdir -p {r} && mount -t tmpfs none {r} && mkdir {r}/upper {r}/work {r}/all"
        yield f"mount -t overlay none -o lowerdir=/,upperdir={r}/upper,workdir={r}/work {r}/all"
        r = f"{r}/all"
        for path in sorted({ROOT, Path(sys.prefix), Path(sys.base_prefix)}):
            yield f"mkdir -p {r}{path} && mount --rbind {path} {r}{path}"
            yield from (f"chmod o+rx {r}{above}" for above in path.parents if above != Path("/"))
        yield f"for each in proc sys dev; do mount --rbind /$each {r}/$each; done"
        yield f"grep -q :{uid}: {r}/etc/passwd || echo pod:x:{uid}:{gid}::/nowhere:/bin/sh >> {r}/etc/passwd"
        yield f"mount --bind {self.hosts} {r}/etc/hosts"
        for mount in self._mounts(group):
            yield f"mkdir -p {r}{mount[1]} && mount --bind {mount[0]} {r}{mount[1]}"
            if mount[2]:
                yield f"mount -o remount,bind,ro {r}{mount[1]}"
        own = self.container["securityContext"]
        if own["readOnlyRootFilesystem"]:
            yield f"mount -o remount,ro {r}"
        words = [f"{name}={value}" for name, value in self.environment().items()]
        limits = ["--no-new-privs"] if not own["allowPrivilegeEscalation"] else []
        limits += ["--inh-caps=-all", "--bounding-set=-all"] if own["capabilities"]["drop"] == ["ALL"] else []
        become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", f"--groups={gid},{group}", "--pdeathsig=KILL", *limits]
        inner = shlex.join(["exec", *become, "env", "-i", *words, *self.container["command"]])
        folder = self.container.get("workingDir", ROOT)
        yield shlex.join(["exec", "chroot", str(root / "all"), "sh", "-c", f"cd {folder} && {inner}"])

    def environment(self) -> dict[str, str]:
        """The image's variables and the container's, whose references are resolved."""
        image = image_environment() if self.container["command"][0] == "python" else {"PATH": f"{BIN}:/usr/bin:/bin"}
        given = {found["name"]: self._value(found) for found in self.container.get("env", ())}
        return {**image, "HOSTNAME": self.name, **{name: value for name, value in given.items() if value is not None}}

    def _value(self, variable: Object) -> str | None:
        match variable.get("valueFrom"):
            case None:
                return str(variable["value"])
            case {"fieldRef": {"fieldPath": "metadata.name"}}:
                return self.name
            case {"secretKeyRef": reference}:
                entries = self.volumes.secrets.get(reference["name"], {})
                assert reference.get("optional") or reference["key"] in entries, reference
                return entries[reference["key"]].decode() if reference["key"] in entries else None
        raise AssertionError(variable)

    # ---- volumes

    def _mounts(self, group: int) -> Iterator[tuple[Path, str, bool]]:
        """The folder, the path in the pod, and whether it is read-only, of each volume."""
        declared = {volume["name"]: volume for volume in self.spec.get("volumes", ())}
        for mount in self.container["volumeMounts"]:
            folder = self._folder(declared.get(mount["name"], {}), mount["name"], group)
            yield folder, mount["mountPath"], bool(mount.get("readOnly"))
        if self.spec["automountServiceAccountToken"]:
            yield self._files("account", self.volumes.account, 0o644, group), ACCOUNT, True

    def _folder(self, volume: Object, name: str, group: int) -> Path:
        match volume:
            case {"projected": projected}:
                entries: dict[str, bytes] = {}
                for source in projected["sources"]:
                    given = self.volumes.secrets[source["secret"]["name"]]
                    entries |= {item["path"]: given[item["key"]] for item in source["secret"]["items"]}
                return self._files(name, entries, projected["defaultMode"], group)
            case {"configMap": reference}:
                return self._files(name, self.volumes.config_maps[reference["name"]], 0o644, group)
            case {"persistentVolumeClaim": reference}:
                return self._owned(self.volumes.folder / "claims" / reference["claimName"], group)
            case {"emptyDir": _}:
                return self._owned(self.folder / name, group)
        assert name in self.claims, f"{self.name}: no volume {name}"
        return self._owned(self.volumes.folder / "claims" / f"{name}-{self.name}", group)

    def _owned(self, folder: Path, group: int) -> Path:
        """A folder that the pod's group may write, as the kubelet makes it for `fsGroup`."""
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chown(folder, 0, group)
            folder.chmod(0o2775)
        return folder

    def _files(self, name: str, entries: Mapping[str, bytes], mode: int, group: int) -> Path:
        """Files as the kubelet writes them: in a folder with another name in each pod, to which they are links."""
        folder = self.folder / name
        kept = folder / f"..2026_11_30.{self.address}"
        kept.mkdir(parents=True)
        (folder / "..data").symlink_to(kept.name)
        for entry, content in entries.items():
            path = kept / entry
            path.write_bytes(content)
            path.chmod(mode)
            os.chown(path, 0, group)
            (folder / entry).symlink_to(f"..data/{entry}")
        return folder

    # ---- probes and the end

    def is_ready(self) -> bool:
        """Whether its readiness probe passes now; True without one.

        Raises:
            AssertionError: its process has ended; shows the end of its log.
        """
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} has ended ({self.process.poll()}):\n{self.tail()}"
        match self.container.get("readinessProbe"):
            case None:
                return True
            case {"exec": {"command": command}}:
                return self.run(*command).returncode == 0
            case {"httpGet": probe}:
                return self._answers(probe)
        raise AssertionError("an unknown kind of probe")

    def _answers(self, probe: Mapping[str, Any]) -> bool:
        """As the kubelet asks: by the pod's address, and without a look at the certificate."""
        (port,) = (each["containerPort"] for each in self.container["ports"] if each["name"] == probe["port"])
        url = f"{probe['scheme'].lower()}://{self.address}:{port}{probe['path']}"
        try:
            return httpx2.get(url, timeout=5, verify=False, trust_env=False).is_success
        except httpx2.HTTPError:
            return False

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the pod, as the pod's user."""
        assert self.process is not None
        security = self.spec["securityContext"]
        become = ["setpriv", f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}", "--clear-groups"]
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        inside = ["nsenter", f"--target={self.process.pid}", "--net", "--mount", "--uts", "--root", "--wd"]
        words = [*inside, *become, "env", "-i", *variables, *command]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    def callers(self, port: int) -> set[str]:
        """The addresses with which it has connections at one of its ports, or had them a short time ago."""
        assert self.process is not None
        table = Path(f"/proc/{self.process.pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        ends = [[_endpoint(end) for end in line.split()[1:3]] for line in table]
        return {remote for (_, own), (remote, other) in ends if own == port and other}

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:] if self.log.exists() else ""

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End its process; returns the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(self.spec.get("terminationGracePeriodSeconds", 30))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _endpoint(text: str) -> tuple[str, int]:
    """An IPv4 address and a port as the kernel writes them (proc_net_tcp)."""
    address, port = text.split(":")
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16)


def own_service_names(service: str) -> list[str]:
    """The names by which a Service is known within the cluster."""
    return [service, *(f"{service}.{NAMESPACE}{end}" for end in ("", ".svc", ".svc.cluster.local"))]
