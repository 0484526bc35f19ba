"""Which keys get certificates under which names, and what a revocation does."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from cryptography import x509

from cloud_server.nodes import identities as identities_module
from cloud_server.nodes.identities import FORGET_S, Identities
from cloud_server.nodes.revoked import Revoked
from shared.core.errors import BadInput, Conflict, Forbidden, NotFound, TooMany, Unauthorised
from shared.identity.authority import make_authority
from shared.identity.join_tokens import draw_secret, load_tokens, read_token
from shared.identity.names import CLOUD, Identity, Peer, agent_identity, edge_identity
from shared.identity.node_keys import NodeKeys
from shared.service.api.identities import CertificateAnswer, CertificateRequest
from shared.storage import redis_keys
from tests.fakes.memory_store import MemoryStore

VALID_S = 3600.0
AUTHORITY = make_authority()


class Clock:
    """Seconds since the epoch, which a test moves on."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.skipped_s


class Setting:
    """Identities on a store, and nodes that ask for certificates."""

    def __init__(self, folder: Path, store: MemoryStore | None = None) -> None:
        self.folder, self.clock = folder, Clock()
        self.store = store or MemoryStore(self.clock)
        self.tokens = load_tokens(folder, AUTHORITY.fingerprint)
        self.revoked = Revoked(folder / "revoked.json", self.clock)
        keys = NodeKeys(CLOUD, folder / "cloud")
        self.identities = Identities(
            self.store,
            keys,
            AUTHORITY,
            lambda: load_tokens(folder, AUTHORITY.fingerprint),
            VALID_S,
            ["localhost"],
            self.revoked,
            self.clock,
        )

    def keys(self, who: Identity, folder: str = "own") -> NodeKeys:
        return NodeKeys(who, self.folder / folder / who.server_name)

    def asked(self, keys: NodeKeys, secret: str | None = None) -> CertificateRequest:
        who = keys.identity
        right = self.tokens.of(who.node_class).secret
        return CertificateRequest(
            node_class=who.node_class, name=who.name, request=keys.request(), secret=right if secret is None else secret
        )

    async def join(self, keys: NodeKeys) -> CertificateAnswer:
        return await self.identities.issue(self.asked(keys), None)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def serial_of(answer: CertificateAnswer) -> str:
    return f"{x509.load_pem_x509_certificate(answer.certificate.encode()).serial_number:x}"


def peer(keys: NodeKeys, answer: CertificateAnswer) -> Peer:
    return Peer(identity=keys.identity, serial=serial_of(answer), not_after=time.time() + VALID_S)


async def test_a_node_with_the_token_of_its_class_gets_a_certificate_that_it_can_use(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    answer = await setting.join(keys)
    keys.install(answer.certificate, answer.authority)
    assert keys.holds(AUTHORITY.fingerprint, time.time())
    assert not keys.holds(AUTHORITY.fingerprint, time.time() + VALID_S + 1)
    assert not keys.holds("0" * 64, time.time())
    (info,) = await setting.identities.infos()
    assert (info.node_class, info.name) == ("edge", "edge-1")
    assert info.not_after == pytest.approx(time.time() + VALID_S, abs=60)


async def test_a_wrong_token_or_one_of_another_class_opens_nothing(setting: Setting) -> None:
    for shown in ("", "guess", setting.tokens.of("device").secret):
        with pytest.raises(Unauthorised, match="join token of the class edge"):
            await setting.identities.issue(setting.asked(setting.keys(edge_identity("edge-1")), shown), None)
    assert await setting.identities.infos() == []


async def test_nobody_becomes_the_cloud(setting: Setting) -> None:
    asked = setting.asked(setting.keys(CLOUD), setting.tokens.of("cloud").secret)
    with pytest.raises(Forbidden, match="the cloud makes its own"):
        await setting.identities.issue(asked, None)


async def test_a_node_whose_answer_was_lost_asks_again_and_gets_the_same_certificate(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    lost, again = await setting.join(keys), await setting.join(keys)
    keys.install(again.certificate, again.authority)
    assert lost == again


async def test_a_revocation_covers_every_certificate_of_a_name_that_still_holds(setting: Setting) -> None:
    """However often a thief asks: nobody can push a certificate out of the cloud's memory."""
    keys = setting.keys(edge_identity("edge-1"))
    serials = []
    for part in (0.0, 0.3, 0.75, 0.9):  # of the time for which the first certificate holds
        setting.clock.skipped_s = part * VALID_S
        serials += [serial_of(await setting.join(keys)) for _ in range(30)]
    assert len(set(serials)) == 2, "a name gets another certificate once two thirds of the last one's time have passed"
    await setting.identities.revoke(keys.identity)
    assert set(setting.revoked) == set(serials)


async def test_a_certificate_whose_name_is_free_renews_nothing(setting: Setting) -> None:
    """Also one that Redis has forgotten, as after a FLUSHALL: its owner shows the join token again."""
    keys = setting.keys(edge_identity("edge-1"))
    shown = peer(keys, await setting.join(keys))
    await setting.store.delete(redis_keys.cloud_identity(keys.identity.uri))
    with pytest.raises(Unauthorised, match="join token"):
        await setting.identities.issue(setting.asked(keys, ""), shown)


async def test_a_new_authority_signs_anew(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    first = await setting.join(keys)
    setting.identities.authority = make_authority()
    second = await setting.join(keys)
    assert serial_of(first) != serial_of(second)
    keys.install(second.certificate, second.authority)


async def test_rotated_tokens_count_at_once_and_are_written_for_new_nodes(setting: Setting, tmp_path: Path) -> None:
    setting.identities.join_dir = tmp_path / "join"
    old = setting.asked(setting.keys(edge_identity("edge-1")))
    draw_secret(setting.folder)
    with pytest.raises(Unauthorised):
        await setting.identities.issue(old, None)
    await setting.identities._look()
    written = read_token((tmp_path / "join" / "edge" / "token").read_text())
    await setting.identities.issue(old.replace(secret=written.secret), None)
    assert (tmp_path / "join" / "public" / "authority.pem").read_text() == AUTHORITY.pem


async def test_a_name_is_bound_to_its_key_until_it_is_revoked(setting: Setting) -> None:
    own, other = (setting.keys(edge_identity("edge-1"), folder) for folder in ("own", "other"))
    await setting.join(own)
    with pytest.raises(Conflict, match="edge edge-1 is bound to another key") as refused:
        await setting.join(other)
    assert refused.value.field == "name"
    await setting.join(setting.keys(agent_identity("edge-1")))  # another class: another node
    await setting.identities.revoke(own.identity)
    await setting.join(other)
    with pytest.raises(Conflict):
        await setting.join(own)


async def test_a_node_renews_its_own_certificate_without_a_token_and_nobody_elses(setting: Setting) -> None:
    keys, other = setting.keys(edge_identity("edge-1")), setting.keys(edge_identity("edge-2"))
    shown = peer(keys, await setting.join(keys))
    await setting.identities.issue(setting.asked(keys, ""), shown)
    with pytest.raises(Unauthorised):
        await setting.identities.issue(setting.asked(other, ""), shown)


async def test_of_two_keys_that_ask_for_a_name_at_once_one_gets_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = setting.store.get

    async def read_by_both(key: str) -> bytes | None:
        found = await get(key)
        await asyncio.sleep(0)  # the other one reads, too, before either writes
        return found

    monkeypatch.setattr(setting.store, "get", read_by_both)
    asking = [setting.join(setting.keys(edge_identity("edge-1"), folder)) for folder in ("own", "other")]
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in found) == ["CertificateAnswer", "Conflict"]


async def test_a_certificate_that_has_ended_renews_nothing(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    shown = peer(keys, await setting.join(keys))
    setting.clock.skipped_s = VALID_S + 60
    with pytest.raises(Unauthorised, match="join token"):
        await setting.identities.issue(setting.asked(keys, ""), shown)
    await setting.identities.issue(setting.asked(keys), shown)


async def test_a_revoked_node_does_not_renew(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    shown = peer(keys, await setting.join(keys))
    await setting.identities.revoke(keys.identity)
    with pytest.raises(Forbidden, match="has been revoked"):
        await setting.identities.issue(setting.asked(keys, ""), shown)


async def test_a_revocation_outlasts_the_cloud_and_ends_with_the_certificate(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    serial = serial_of(await setting.join(keys))
    await setting.identities.revoke(keys.identity)
    assert await setting.identities.infos() == []
    restarted = Setting(setting.folder, setting.store)
    await restarted.identities.load()
    assert set(restarted.revoked) == {serial}
    setting.clock.skipped_s = VALID_S + 1
    later = Setting(setting.folder, setting.store)
    later.clock.skipped_s = setting.clock.skipped_s
    await later.identities.load()
    assert set(later.revoked) == set()
    with pytest.raises(NotFound, match="edge edge-1 has no certificate"):
        await setting.identities.revoke(keys.identity)


@pytest.mark.parametrize("lost", ["Redis", "the file"])
async def test_a_revocation_outlasts_the_loss_of_redis_or_of_its_file(setting: Setting, lost: str) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    serial = serial_of(await setting.join(keys))
    await setting.identities.revoke(keys.identity)
    if lost == "Redis":
        await setting.store.delete_prefix("")
    else:
        (setting.folder / "revoked.json").unlink()
    await setting.identities.load()
    restarted = Setting(setting.folder, setting.store)
    await restarted.identities.load()
    assert (set(setting.revoked), set(restarted.revoked)) == ({serial}, {serial})


async def test_a_node_that_redis_has_forgotten_is_bound_again_by_its_token(setting: Setting) -> None:
    keys = setting.keys(edge_identity("edge-1"))
    shown = peer(keys, await setting.join(keys))
    await setting.store.delete_prefix("")
    assert not await setting.identities.is_bound(keys.identity)
    await setting.identities.issue(setting.asked(keys), shown)
    assert await setting.identities.is_bound(keys.identity)


async def test_a_request_during_a_revocation_waits_for_its_end(setting: Setting) -> None:
    """Else it would make the node's user of Redis anew."""
    keys = setting.keys(edge_identity("edge-1"))
    shown = peer(keys, await setting.join(keys))
    steps: list[str] = []

    class Users:
        async def let_in(self, node: Identity, key: str) -> str:
            steps.append("in")
            return "password"

        async def shut_out(self, node: Identity) -> None:
            await asyncio.sleep(0)
            steps.append("out")

    setting.identities.users = Users()  # type: ignore[assignment]
    revoking = asyncio.create_task(setting.identities.revoke(keys.identity))
    await asyncio.sleep(0)
    with pytest.raises(Forbidden, match="has been revoked"):
        await setting.identities.issue(setting.asked(keys, ""), shown)
    await revoking
    assert steps == ["out"]
    with pytest.raises(NotFound):
        await setting.identities.revoke(keys.identity)
    assert steps == ["out", "out"], "who revokes again reaches what an earlier attempt did not"


async def test_names_are_counted_by_class_and_freed_when_they_are_old(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities_module, "MAX_NAMES", 2)
    for name in ("a-1", "a-2"):
        await setting.join(setting.keys(agent_identity(name)))
    with pytest.raises(TooMany, match="2 nodes of the class device"):
        await setting.join(setting.keys(agent_identity("a-3")))
    await setting.join(setting.keys(edge_identity("edge-1")))
    setting.clock.skipped_s = VALID_S + FORGET_S + 60
    await setting.identities.load()
    assert await setting.identities.infos() == []
    await setting.join(setting.keys(agent_identity("a-3")))


async def test_a_malformed_request_binds_no_name(setting: Setting) -> None:
    asked = setting.asked(setting.keys(edge_identity("edge-1"))).replace(request="nonsense")
    with pytest.raises(BadInput, match="signing request"):
        await setting.identities.issue(asked, None)
    assert await setting.identities.infos() == []


@pytest.mark.parametrize("content", ["", "[1]", '{"a1": "x"}'])
def test_a_damaged_file_of_revocations_is_not_taken_for_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "revoked.json").write_text(content)
    with pytest.raises(BadInput, match="is damaged"):
        Revoked(tmp_path / "revoked.json")


async def test_a_wrong_clock_of_a_node_that_joins_is_logged_once_and_told_for_a_while(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    for ahead_s in (-86400.0, -86399.0, 3.0):
        setting.identities.note_clock("agent a-1", ahead_s)
        told = setting.identities.wrong_clocks()
        assert [text[:24] for text in told] == (["the clock of agent a-1 i"] if ahead_s < 0 else [])
    assert caplog.text.count("the clock of agent a-1 is 86400 s behind") == 1
    for n in range(200):
        setting.identities.note_clock(f"agent a-{n}", 3600.0)
    assert len(setting.identities.wrong_clocks()) == 100
