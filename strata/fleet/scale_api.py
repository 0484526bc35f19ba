"""The part of the API of Kubernetes that the fleet uses: reading and setting the replicas of a StatefulSet.

Both go through the sub-resource `scale`, so that a Role can allow them and nothing else
(https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/stateful-set-v1/).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx2
from pydantic import BaseModel, Field, ValidationError

from shared.core.addresses import in_url
from shared.core.errors import BadInput, StrataError
from shared.service.api.membership import MAX_AGENTS
from shared.service.connections import Connections

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the token of its service account, the certificate of the API server's authority, its namespace."""
ANSWER_S = 10.0
"""Longest wait for an answer of the API server."""
MERGE = {"content-type": "application/merge-patch+json"}


class ClusterError(StrataError):
    """The API server of Kubernetes refused a request or does not answer."""

    status, code = 502, "cluster"


class ScaleChanged(ClusterError):
    """A StatefulSet was changed between reading its scale and setting it, if only by Kubernetes itself."""


class Scale(BaseModel):
    """The scale of a StatefulSet.

    Attributes:
        wanted: pods that it should have.
        running: pods that it has, those included that are ending.
        version: of the object; a change that names an older one is refused.
    """

    wanted: int = Field(ge=0, le=MAX_AGENTS)
    running: int = Field(ge=0, le=MAX_AGENTS)
    version: str = Field(min_length=1)


class ScaleApi:
    """A client of the API server; a context manager that closes its connections.

    Args:
        account: folder with the files of the service account.
        environ: names the address of the API server.
        transport: replaces the network in tests.

    Raises:
        BadInput: this process runs in no pod, or its pod has no service account.
    """

    def __init__(
        self,
        account: Path = ACCOUNT,
        environ: Mapping[str, str] = os.environ,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        field = "KUBERNETES_SERVICE_HOST"
        if not environ.get(field):
            raise BadInput(f"{field} is not set: FLEET_SET_PREFIX is for a fleet in a pod", field=field)
        self._token_file = account / "token"
        try:
            trust = ssl.create_default_context(cafile=account / "ca.crt")
            self.namespace = (account / "namespace").read_text(encoding="utf-8").strip()
        except OSError as error:
            why = f"the pod has no files of a service account in {account}: {error.strerror}"
            raise BadInput(f"{why} (`automountServiceAccountToken`)", field="FLEET_SET_PREFIX") from None
        self.url = f"https://{in_url(environ[field])}:{environ.get('KUBERNETES_SERVICE_PORT') or 443}"
        self._connections = Connections(timeout=ANSWER_S, transport=transport, verify=trust)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def read(self, name: str) -> Scale:
        """The scale of a StatefulSet.

        Raises:
            ClusterError: says who refused what.
        """
        return self._scale(name, self._call("GET", name))

    def write(self, name: str, wanted: int, version: str) -> None:
        """Set how many pods a StatefulSet should have, unless it has changed since it was read.

        Raises:
            ScaleChanged: it has.
            ClusterError: says who refused what.
        """
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": wanted}}
        self._call("PATCH", name, json=body, headers=MERGE)

    def _call(self, method: str, name: str, **options: Any) -> httpx2.Response:
        headers = options.pop("headers", {}) | {"authorization": f"Bearer {self._token()}"}
        url = f"{self.url}/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{name}/scale"
        try:
            answer = self._connections.request(method, url, headers=headers, **options)
        except httpx2.HTTPError as error:
            why = f"{type(error).__name__}: {error}"
            raise ClusterError(f"the API server at {self.url} does not answer: {why}") from None
        if answer.status_code != 200:
            raise (ScaleChanged if answer.status_code == 409 else ClusterError)(self._refusal(answer, method, name))
        return answer

    def _token(self) -> str:
        """The token, read anew each time: Kubernetes replaces it every hour or so."""
        try:
            return self._token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ClusterError(f"the service account's token, {self._token_file}, cannot be read: {why}") from None

    def _refusal(self, answer: httpx2.Response, method: str, name: str) -> str:
        what = f"StatefulSet {name} of namespace {self.namespace}"
        known = {
            401: f"the API server does not accept the service account's token ({self._token_file})",
            403: f"the service account may not {method.lower()} statefulsets/scale of {what}: its Role must allow it",
            404: f"there is no {what}: FLEET_SET_PREFIX, FLEET_SETS or FLEET_EDGE_SERVICE names another",
            409: f"{what} was changed at the same time; the fleet tries again",
        }
        words = known.get(answer.status_code, f"the API server refused to {method.lower()} the scale of {what}")
        return f"{words} ({answer.status_code}: {_message(answer)})"

    @staticmethod
    def _scale(name: str, answer: httpx2.Response) -> Scale:
        try:
            found = answer.json()
            # An object of Go leaves out a number that is 0.
            return Scale(
                wanted=found["spec"].get("replicas", 0),
                running=found.get("status", {}).get("replicas", 0),
                version=found["metadata"]["resourceVersion"],
            )
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
            raise ClusterError(f"the API server's answer is no scale of StatefulSet {name}") from None


def _message(answer: httpx2.Response) -> str:
    """What the API server says of a refusal, shortened."""
    try:
        said = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        said = answer.text
    return " ".join(str(said)[:300].split()) or "without a word"
