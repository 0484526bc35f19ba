"""The authority of a local topology in secure mode: its folder, and what processes need to get their certificates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.identity.names import NodeClass


@dataclass(frozen=True)
class Authority:
    """The authority that signs the certificates of a topology's nodes.

    Attributes:
        folder: of its key, its certificate and the join tokens.
    """

    folder: Path

    @property
    def file(self) -> Path:
        """Its certificate."""
        return self.folder / "authority.pem"

    def join_token(self, node_class: NodeClass) -> str:
        """The join token of a class of nodes."""
        from shared.identity.authority import authority_of
        from shared.identity.join_tokens import load_tokens

        fingerprint = authority_of(self.folder).fingerprint
        return str(load_tokens(self.folder, fingerprint).of(node_class))

    def variables(self, tier: str) -> dict[str, str]:
        """The variables with which a process of this tier (`CLOUD`, `EDGE`, `AGENT`) shows who it is."""
        found = {"STRATA_SECURE": "1", "STRATA_JOIN_TOKEN_FILE": ""}
        if tier == "CLOUD":
            return found | {"CLOUD_AUTHORITY_DIR": str(self.folder), "STRATA_JOIN_TOKEN": ""}
        return found | {"STRATA_JOIN_TOKEN": self.join_token("edge" if tier == "EDGE" else "device")}
