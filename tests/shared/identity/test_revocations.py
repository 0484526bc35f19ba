"""The list of revoked certificates: only the cloud makes one, the newest counts, and none is sent twice."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from shared.core.errors import Conflict, Forbidden
from shared.identity.names import CLOUD, edge_identity
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import LIST_CHARS, MAX_REVOKED, Revocations, RevocationSigner
from shared.identity.signing import NEVER, CloudKey, Signer


class Setting:
    """A cloud that revokes, and a node that hears of it."""

    def __init__(self, folder: Path) -> None:
        self.revoked: dict[str, None] = {}
        self.signer = Signer(NodeKeys(CLOUD, folder / "cloud"), 1)
        self.cloud = RevocationSigner(self.signer, self.revoked)
        self.node = Revocations(CloudKey())
        self.node.cloud_key.trust(self.signer.public_key)

    def heartbeat(self) -> str:
        """What the node is sent, and takes."""
        sent = self.cloud.newer_than(self.node.issue)
        self.node.take(sent)
        return sent


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_a_node_refuses_what_the_cloud_has_revoked_and_no_more_once_it_has_ended(setting: Setting) -> None:
    assert setting.heartbeat()
    assert setting.heartbeat() == "", "a list is sent once"
    assert "a1" not in setting.node
    setting.revoked["a1"] = None
    assert setting.heartbeat()
    assert setting.heartbeat() == ""
    assert "a1" in setting.node
    del setting.revoked["a1"]
    setting.heartbeat()
    assert "a1" not in setting.node


def test_the_newest_list_counts_whatever_an_edge_passes_on(setting: Setting) -> None:
    before = setting.heartbeat()
    setting.revoked["a1"] = None
    after = setting.heartbeat()
    setting.node.take(before)
    setting.node.take("")
    assert "a1" in setting.node
    assert setting.node.newer_than(NEVER) == after, "it is passed on as the cloud signed it"
    assert setting.node.newer_than(setting.node.issue) == ""


def test_a_later_cloud_process_signs_a_newer_list_and_another_cloud_counts_anew(
    setting: Setting, tmp_path: Path
) -> None:
    for serial in ("a1", "b2", "c3"):
        setting.revoked[serial] = None
        setting.heartbeat()
    later = RevocationSigner(Signer(NodeKeys(CLOUD, tmp_path / "cloud"), 2), {"c3"})
    setting.node.take(later.newer_than(setting.node.issue))
    assert ("a1" in setting.node, "c3" in setting.node) == (False, True)
    signer = Signer(NodeKeys(CLOUD, tmp_path / "other"), 1)
    setting.node.cloud_key.trust(signer.public_key)
    setting.node.take(RevocationSigner(signer, {"a1"}).newer_than(NEVER))
    assert ("a1" in setting.node, "c3" in setting.node) == (True, False)


def test_no_other_node_can_make_one(setting: Setting, tmp_path: Path) -> None:
    setting.revoked["a1"] = None
    setting.heartbeat()
    edge = RevocationSigner(Signer(NodeKeys(edge_identity("e"), tmp_path / "edge"), 9), set())
    with pytest.raises(Conflict):  # it has not registered, and cannot tell
        Revocations(CloudKey()).take(setting.cloud.newer_than(NEVER))
    for forged in (edge.newer_than(NEVER), "x", "x.y"):
        with pytest.raises(Forbidden, match="list of revoked certificates"):
            setting.node.take(forged)
    assert "a1" in setting.node


def test_the_list_holds_the_newest_and_fits_an_answer(setting: Setting) -> None:
    setting.revoked["oldest"] = None
    setting.revoked.update((secrets.token_hex(20), None) for _ in range(MAX_REVOKED))
    assert len(setting.heartbeat()) < LIST_CHARS
    assert len(setting.revoked) == MAX_REVOKED + 1
    assert [serial in setting.node for serial in setting.revoked] == [False] + [True] * MAX_REVOKED
