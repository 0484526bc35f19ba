"""The identity of a node: its class and its name, as a certificate carries them."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Mapping
from typing import Any, Literal, get_args

from shared.core.errors import Forbidden
from shared.core.records import Record
from shared.core.validation import ID, Id

NodeClass = Literal["cloud", "edge", "device", "fleet"]
"""Kinds of nodes; a process that hosts devices is of the class `device`."""
CLASSES: tuple[NodeClass, ...] = get_args(NodeClass)
ANY_NODE = "node.strata.internal"
"""A server name that every node's certificate has, for clients that may call any of them, as Prometheus."""
_URI = re.compile(rf"strata://({'|'.join(CLASSES)})/({ID[1:-1]})")


class Identity(Record):
    """A node's class and its name, which is unique in its class."""

    node_class: NodeClass
    name: Id

    def __str__(self) -> str:
        kinds = {"cloud": "the cloud", "device": f"agent {self.name}"}
        return kinds.get(self.node_class, f"{self.node_class} {self.name}")

    @property
    def uri(self) -> str:
        """The identity as certificates carry it, such as `strata://edge/edge-1`."""
        return f"strata://{self.node_class}/{self.name}"

    @property
    def server_name(self) -> str:
        """A DNS name that stands for the identity in a TLS handshake; names of nodes need not be DNS names."""
        return f"{hashlib.sha256(self.name.encode()).hexdigest()[:32]}.{self.node_class}.strata.internal"


CLOUD = Identity(node_class="cloud", name="cloud")
"""There is one cloud."""


def edge_identity(name: str) -> Identity:
    """The identity of an edge."""
    return Identity(node_class="edge", name=name)


def agent_identity(agent: str) -> Identity:
    """The identity of an agent, by its id."""
    return Identity(node_class="device", name=agent)


class Peer(Record):
    """The other side of a connection, as its certificate shows it.

    Attributes:
        serial: the certificate's serial number in hexadecimal, by which it is revoked.
        not_after: seconds since the epoch at which the certificate ends.
    """

    identity: Identity
    serial: str
    not_after: float


def class_of(uri: str) -> str:
    """Returns the class in the URI of an identity."""
    return uri.removeprefix("strata://").partition("/")[0]


def serial_text(number: int) -> str:
    """Returns a serial number as it is compared; OpenSSL itself pads it with zeros to whole bytes."""
    return f"{number:x}"


def peer_of(certificate: Mapping[str, Any]) -> Peer:
    """Returns what a verified certificate says of its holder.

    Args:
        certificate: as `ssl.SSLObject.getpeercert` describes it.

    Raises:
        Forbidden: it carries none, or several.
    """
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    found = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None:
        raise Forbidden("the certificate names no node of StrataFL")
    identity = Identity.model_validate({"node_class": found[1], "name": found[2]})
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    return Peer(identity=identity, serial=serial_text(int(certificate["serialNumber"], 16)), not_after=ends)
