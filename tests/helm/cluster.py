"""Rendered objects as running pods, with addresses, names and an API server that knows scales and roles."""

from __future__ import annotations

import itertools
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shared.identity.authority import Authority, make_authority
from shared.identity.names import Identity
from tests import waits
from tests.helm.chart import NAMESPACE, Object, data_of, of_kind, workloads
from tests.helm.pods import Pod, Volumes, own_service_names

T = TypeVar("T")
NETWORK = "100.{}.{}."
"""Pods have addresses of the shared address space (RFC 6598), as some clusters' have: no private ones."""
TOKEN = "the-token-of-the-service-account"  # noqa: S105


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Cluster:
    """Runs the pods of rendered objects; a context manager that ends them and takes their networks away.

    Args:
        folder: of claims, logs and the pods' files.
        objects: as rendered.
        secrets: the entries of those that the objects only name.
        config_maps: the entries of ConfigMaps.
    """

    def __init__(
        self,
        folder: Path,
        objects: list[Object],
        secrets: Mapping[str, Mapping[str, bytes]] | None = None,
        config_maps: Mapping[str, Mapping[str, bytes]] | None = None,
    ) -> None:
        self.folder, self.objects = folder, objects
        made = {name: data_of(found) for name, found in of_kind(objects, "Secret").items()}
        self.authority = make_authority()
        account = {"token": TOKEN.encode(), "ca.crt": self.authority.pem.encode(), "namespace": NAMESPACE.encode()}
        self.volumes = Volumes(folder, {**made, **(secrets or {})}, config_maps or {}, account)
        self.pods: dict[str, Pod] = {}
        self.replicas = {name: int(found["spec"]["replicas"]) for name, found in workloads(objects).items()}
        self._tag = f"fl{os.getpid() % 100_000}"
        self._network = NETWORK.format(64 + os.getpid() % 64, os.getpid() // 64 % 256)
        self._numbers = itertools.count(10)
        self._api = ApiServer(self)

    def __enter__(self) -> Self:
        ip("netns", "add", self._tag)
        try:
            ip("-n", self._tag, "link", "add", "switch", "type", "bridge")
            ip("-n", self._tag, "link", "set", "switch", "up")
            ip("link", "add", self._tag, "type", "veth", "peer", "name", "host", "netns", self._tag)
            ip("-n", self._tag, "link", "set", "host", "master", "switch", "up")
            ip("address", "add", f"{self.gateway}/24", "dev", self._tag)
            ip("link", "set", self._tag, "up")
            self._api.start(self.gateway)
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._api.stop()
        for pod in self.pods.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait()
            ip("netns", "delete", pod.netns)
        ip("netns", "delete", self._tag)  # and with it the switch, and both ends of its links

    @property
    def gateway(self) -> str:
        """The address of this process in the pods' network."""
        return f"{self._network}1"

    # ---- what Kubernetes does

    def settle(self) -> None:
        """Start and end pods until there are as many as the workloads ask for, the last ones first."""
        for name, workload in workloads(self.objects).items():
            wanted = {self._pod_name(workload, number) for number in range(self.replicas[name])}
            mine = [pod for pod in self.pods.values() if selects_pod(workload, pod)]
            for pod in mine:
                if pod.name not in wanted:
                    self.delete(pod.name, signal_it=True)
            for each in sorted(wanted - self.pods.keys()):
                self._create(each, workload)

    def _pod_name(self, workload: Object, number: int) -> str:
        name = str(workload["metadata"]["name"])
        return f"{name}-{number}" if workload["kind"] == "StatefulSet" else f"{name}-5d9c7-x{number}"

    def _create(self, name: str, workload: Object) -> None:
        number = next(self._numbers)
        pod = Pod(
            name=name,
            labels=workload["spec"]["template"]["metadata"]["labels"],
            spec=workload["spec"]["template"]["spec"],
            claims=tuple(claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())),
            volumes=self.volumes,
            address=f"{self._network}{number}",
            netns=f"{self._tag}-{number}",
        )
        ip("netns", "add", pod.netns)
        self.pods[name] = pod
        ip("-n", pod.netns, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{number}", "netns", self._tag)
        ip("-n", self._tag, "link", "set", f"p{number}", "master", "switch", "up")
        for words in (
            ("address", "add", f"{pod.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", self.gateway),
        ):
            ip("-n", pod.netns, *words)
        self._write_hosts()
        pod.start()

    def _write_hosts(self) -> None:
        """Tell every pod the addresses of all Services' pods; written in place, since the files are mounted."""
        lines = ["127.0.0.1 localhost", f"{self.gateway} kubernetes.default.svc"]
        for name, service in of_kind(self.objects, "Service").items():
            found = [pod for pod in self.pods.values() if service["spec"]["selector"].items() <= pod.labels.items()]
            lines += [f"{pod.address} {' '.join(own_service_names(name))}" for pod in found]
        for pod in self.pods.values():
            pod.hosts.write_text("\n".join([*lines, f"{pod.address} {pod.name}", ""]), encoding="ascii")

    def delete(self, name: str, *, signal_it: bool = True) -> int:
        """End a pod, by SIGTERM or SIGKILL; its claims stay. Returns its exit status."""
        pod = self.pods.pop(name)
        status = pod.stop() if signal_it else pod.stop(9)
        ip("netns", "delete", pod.netns)
        self._write_hosts()
        return status

    def until(self, what: str, look: Callable[[], T]) -> T:
        """Wait for a condition, while pods are started and ended as asked for; the error shows the ends of logs."""
        try:
            return waits.until(what, look, every_s=0.3, meanwhile=self.settle)
        except waits.Hang as hang:
            logs = "\n".join(f"--- {pod.name}\n{pod.tail()[-700:]}" for pod in self.pods.values())
            raise waits.Hang(f"{hang}\n{logs}") from None

    def wait_ready(self) -> None:
        """Wait until the readiness probes of all pods pass."""
        self.until("ready pods", lambda: all(pod.is_ready() for pod in self.pods.values()))

    def address_of(self, service: str) -> str:
        """The address of the one pod of a Service."""
        selector = of_kind(self.objects, "Service")[service]["spec"]["selector"]
        (found,) = (pod.address for pod in self.pods.values() if selector.items() <= pod.labels.items())
        return found


def selects_pod(workload: Object, pod: Pod) -> bool:
    return bool(workload["spec"]["selector"]["matchLabels"].items() <= pod.labels.items())


class ApiServer:
    """Answers `statefulsets/scale` as the API server does, for whoever shows the token and as the Role allows.

    Args:
        cluster: whose scales these are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.asked: list[tuple[str, str, int]] = []  # verb, name, status
        self.versions = dict.fromkeys(cluster.replicas, 1)
        self._server: ThreadingHTTPServer | None = None

    def start(self, address: str) -> None:
        """Serve over TLS at this address, of which pods are told."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, "get")

            def do_PATCH(self) -> None:
                server.answer(self, "patch")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_for(self.cluster.authority, address, self.cluster.folder / "api.pem"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        where = {"KUBERNETES_SERVICE_HOST": address, "KUBERNETES_SERVICE_PORT": str(self._server.server_port)}
        for workload in workloads(self.cluster.objects).values():
            (one,) = workload["spec"]["template"]["spec"]["containers"]
            one.setdefault("env", []).extend({"name": name, "value": value} for name, value in where.items())

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, verb: str) -> None:
        """Answer a request for a scale."""
        body = json.loads(request.rfile.read(int(request.headers.get("content-length") or 0)) or b"{}")
        name = request.path.removeprefix(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/").removesuffix("/scale")
        status, answer = self._answered(request.headers.get("authorization", ""), verb, name, body)
        self.asked.append((verb, name, status))
        content = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _answered(self, shown: str, verb: str, name: str, body: Any) -> tuple[int, Any]:
        rules = [rule for role in of_kind(self.cluster.objects, "Role").values() for rule in role["rules"]]
        if shown != f"Bearer {TOKEN}":
            return 401, {"message": "Unauthorized"}
        if not any(name in rule["resourceNames"] and verb in rule["verbs"] for rule in rules):
            return 403, {"message": f"{verb} of {name} is forbidden"}
        if verb == "patch":
            if body["metadata"]["resourceVersion"] != str(self.versions[name]):
                return 409, {"message": "the object has been modified"}
            self.cluster.replicas[name] = body["spec"]["replicas"]
            self.versions[name] += 1
        running = sum(pod.name.startswith(f"{name}-") for pod in list(self.cluster.pods.values()))
        meta = {"name": name, "resourceVersion": str(self.versions[name])}
        return 200, {
            "metadata": meta,
            "spec": {"replicas": self.cluster.replicas[name]},
            "status": {"replicas": running},
        }


def certificate_for(authority: Authority, address: str, path: Path) -> Path:
    """Writes a key with a certificate for an address, and returns the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = request.public_bytes(serialization.Encoding.PEM).decode()
    certificate = authority.issue(pem, Identity(node_class="cloud", name="api"), 86400, [address])
    encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, none) + certificate.public_bytes(encoding)
    )
    return path
