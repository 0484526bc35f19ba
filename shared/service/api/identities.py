"""The bodies of `/identities`: how a node gets its certificate, and what users see of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.core.records import Record
from shared.core.validation import Id
from shared.identity.names import NodeClass
from shared.identity.revocations import SignedList
from shared.identity.signing import Issue

Pem = Annotated[str, Field(max_length=8192)]


class CertificateRequest(Record):
    """Node to cloud.

    Attributes:
        node_class: of the node.
        name: of the node, unique in its class.
        request: a signing request for the node's key (PEM).
        secret: that of the class's join token; not needed over a connection that shows the node's certificate.
    """

    node_class: NodeClass
    name: Id
    request: Pem
    secret: str = Field(default="", max_length=64)


class CertificateAnswer(Record):
    """Cloud to node: its certificate and that of the authority (PEM).

    Attributes:
        store_password: with which an edge reaches its keys in Redis; empty if Redis asks for none.
    """

    certificate: Pem
    authority: Pem
    store_password: str = Field(default="", max_length=64)


class AuthorityInfo(Record):
    """`GET /identities/authority`: the authority's certificate (PEM), which whoever knows its fingerprint can check."""

    authority: Pem


class CheckRequest(Record):
    """Node to cloud; `revoked` is the issue of the list of revoked certificates that the node knows."""

    revoked: Issue


class CheckAnswer(Record):
    """Cloud to node.

    Attributes:
        known: whether the cloud knows the node's key; otherwise the node asks for a certificate again.
        cloud_key: the key with which the cloud signs what nodes pass on (PEM).
        revoked: the list of revoked certificates, if it is newer than the node's.
    """

    known: bool
    cloud_key: str
    revoked: SignedList = ""


class RevokedBody(Record):
    """Cloud to node, as soon as the list changes: all certificates that have been revoked and have not ended."""

    revoked: SignedList


class IdentityInfo(Record):
    """A node that has a certificate.

    Attributes:
        key_sha256: of its public key, to which the name is bound.
        not_after: when its newest certificate ends, in seconds since the epoch.
    """

    node_class: NodeClass
    name: Id
    key_sha256: str
    not_after: float


class IdentityPage(Record):
    """`GET /identities`."""

    identities: tuple[IdentityInfo, ...]
