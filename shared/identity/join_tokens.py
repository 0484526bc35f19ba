"""Join tokens: a secret of a class of nodes, with the fingerprint of the authority that they may trust.

A token reads `strata-CLASS-FINGERPRINT-SECRET`, like those of Docker Swarm and kubeadm: a node that has one knows both
which installation it joins and what it shows there.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from shared.core.errors import BadInput, Unauthorised
from shared.core.files import write_file
from shared.identity.authority import locked
from shared.identity.names import CLASSES, NodeClass

SECRET_FILE = "join-secret"  # noqa: S105  a file's name
_CLASS: dict[str, NodeClass] = {name: name for name in CLASSES}
_TOKEN = re.compile(rf"strata-({'|'.join(CLASSES)})-([0-9a-f]{{64}})-([0-9a-f]{{64}})")


@dataclass(frozen=True)
class JoinToken:
    """A token in parts.

    Attributes:
        node_class: of the nodes that may join with it.
        fingerprint: the SHA-256 of the authority's certificate.
        secret: what the cloud checks.
    """

    node_class: NodeClass
    fingerprint: str
    secret: str

    def __str__(self) -> str:
        return f"strata-{self.node_class}-{self.fingerprint}-{self.secret}"


def read_token(text: str, field: str = "join token") -> JoinToken:
    """Returns the parts of a token.

    Raises:
        BadInput: it is not a join token; the message does not quote it.
    """
    found = _TOKEN.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"{field}: not a join token, which `strata certs token CLASS` prints", field=field)
    return JoinToken(_CLASS[found[1]], found[2], found[3])


@dataclass(frozen=True)
class JoinTokens:
    """The tokens of all classes, derived from one secret. A new secret makes all of them void."""

    secret: bytes
    fingerprint: str

    def of(self, node_class: NodeClass) -> JoinToken:
        """The token of a class."""
        return JoinToken(node_class, self.fingerprint, hmac.digest(self.secret, node_class.encode(), "sha256").hex())

    def check(self, node_class: NodeClass, secret: str) -> None:
        """Checks the secret that a node of this class shows.

        Raises:
            Unauthorised: it is wrong, or another class's.
        """
        if not hmac.compare_digest(secret.encode(), self.of(node_class).secret.encode()):
            raise Unauthorised(f"the join token of the class {node_class} is missing or wrong")


def load_tokens(folder: Path, fingerprint: str) -> JoinTokens:
    """Returns the tokens of a folder, whose secret is drawn when there is none."""
    path = folder / SECRET_FILE
    with locked(folder):
        if not path.exists():
            draw_secret(folder)
    return JoinTokens(bytes.fromhex(path.read_text(encoding="ascii")), fingerprint)


def draw_secret(folder: Path) -> None:
    """Draws the secret of a folder anew; nodes that have a certificate keep it, earlier tokens are void."""
    write_file(folder / SECRET_FILE, secrets.token_hex(32).encode(), mode=0o600, durable=True)
