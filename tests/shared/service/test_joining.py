"""A node gets its certificate before it serves: from the cloud that its token names, and from no other."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization

from shared.core.errors import BadInput, Forbidden, StrataError, Unreachable, WireError
from shared.identity.authority import make_authority
from shared.identity.join_tokens import JoinTokens
from shared.identity.names import CLOUD, edge_identity
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import Revocations, RevocationSigner
from shared.identity.signing import CloudKey, Signer
from shared.service.api.identities import CertificateRequest
from shared.service.client import Caller
from shared.service.joining import CHECK_S, LOOK_S, SLEPT_S, Renewal, join, join_once, joined
from shared.service.protocol import SAID
from shared.service.settings import CommonSettings, TierSettings
from tests.waits import HANG_S

AUTHORITY, STRANGER = make_authority(), make_authority()
TOKENS = JoinTokens(b"secret", AUTHORITY.fingerprint)
EDGE = edge_identity("edge-1")
SIGNER = Signer(NodeKeys(CLOUD, Path(tempfile.mkdtemp())), 1)


class FakeCloud:
    """Answers as the cloud does, after `failures` attempts that it does not hear; notes what it was asked."""

    def __init__(self, failures: int = 0, valid_s: float = 3600.0) -> None:
        self.failures, self.valid_s, self.authority = failures, valid_s, AUTHORITY
        self.asked: list[CertificateRequest] = []
        self.names: list[str] = []
        self.refusal: tuple[int, str] | None = None
        self.signer, self.revoked, self.knows = SIGNER, {"a1"}, True
        self.authority_text = ""

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.names.append(request.extensions.get("sni_hostname", ""))
        if self.failures:
            self.failures -= 1
            raise httpx2.ConnectError("nobody listens", request=request)
        if request.url.path == "/identities/authority":
            return httpx2.Response(200, json={"authority": self.authority_text or self.authority.pem}, headers=SAID)
        if request.url.path == "/identities/check":
            known = tuple(json.loads(request.content)["revoked"])
            signed = RevocationSigner(self.signer, self.revoked).newer_than((known[0], known[1]))
            answer = {"known": self.knows, "cloud_key": self.signer.public_key, "revoked": signed}
            return httpx2.Response(200, json=answer, headers=SAID)
        if self.refusal:
            status, code = self.refusal
            return httpx2.Response(status, json={"detail": "no", "code": code})
        asked = CertificateRequest.model_validate_json(request.content)
        self.asked.append(asked)
        certificate = AUTHORITY.issue(asked.request, EDGE, self.valid_s)
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        return httpx2.Response(200, json={"certificate": pem, "authority": AUTHORITY.pem}, headers=SAID)


@pytest.fixture
def keys(tmp_path: Path) -> NodeKeys:
    return NodeKeys(EDGE, tmp_path / "edge")


def ask(keys: NodeKeys, cloud: Callable[[httpx2.Request], httpx2.Response], waits: list[float] | None = None) -> None:
    waited = [] if waits is None else waits
    join(keys, "https://cloud", TOKENS.of("edge"), transport=httpx2.MockTransport(cloud), wait=waited.append)


def test_a_node_waits_for_its_cloud_and_shows_the_token_to_it_alone(keys: NodeKeys) -> None:
    cloud, waits = FakeCloud(failures=3), list[float]()
    ask(keys, cloud, waits)
    assert keys.holds(AUTHORITY.fingerprint, time.time())
    assert len(waits) == 3
    assert [asked.secret for asked in cloud.asked] == [TOKENS.of("edge").secret]
    assert set(cloud.names) == {CLOUD.server_name}, "the certificate of the other side must be the cloud's"
    cloud.refusal = (409, "conflict")
    with pytest.raises(StrataError, match="no") as refused:
        ask(NodeKeys(EDGE, keys.folder / "new"), cloud, waits)
    assert (refused.value.status, len(waits)) == (409, 3), "a refusal ends the attempts"


def test_a_certificate_that_has_ended_is_replaced_and_with_one_that_holds_nobody_is_asked(keys: NodeKeys) -> None:
    ask(keys, FakeCloud(valid_s=-1.0))
    assert not keys.holds(AUTHORITY.fingerprint, time.time())
    cloud = FakeCloud()
    for again in (keys, keys, NodeKeys(EDGE, keys.folder)):
        ask(again, cloud)
    assert len(cloud.asked) == 1
    assert keys.holds(AUTHORITY.fingerprint, time.time())


@pytest.mark.parametrize(
    "pem",
    [STRANGER.pem, "nonsense", AUTHORITY.pem + STRANGER.pem, STRANGER.pem + AUTHORITY.pem],
    ids=["another", "none", "a second", "a first"],
)
def test_a_cloud_of_another_authority_is_told_no_secret(keys: NodeKeys, pem: str) -> None:
    """Also if a process in the path joins its own to the one that the token names."""
    cloud = FakeCloud()
    cloud.authority_text = pem
    with pytest.raises(Forbidden, match="another authority than the join token names"):
        ask(keys, cloud)
    assert cloud.asked == []


@pytest.mark.parametrize(("ahead_s", "words"), [(86400.0, "s ahead"), (-86400.0, "s behind"), (10.0, "")])
def test_a_certificate_that_fails_by_a_wrong_clock_is_told_so(keys: NodeKeys, ahead_s: float, words: str) -> None:
    told: list[str] = []

    def by_its_clock(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/identities/authority":
            told.append(f"{request.url.params['node_class']} {request.url.params['name']}")
            assert abs(float(request.url.params["clock_s"]) - time.time()) < HANG_S
            sent = formatdate(time.time() - ahead_s, usegmt=True)
            return httpx2.Response(200, json={"authority": AUTHORITY.pem}, headers={"date": sent, **SAID})
        raise httpx2.ConnectError("certificate verify failed: certificate is not yet valid", request=request)

    with pytest.raises(Unreachable) as refused:
        join_once(keys, "https://cloud", TOKENS.of("edge"), httpx2.MockTransport(by_its_clock))
    assert told == ["edge edge-1"]
    assert "not yet valid" in refused.value.detail
    assert ("the clock of this machine is" in refused.value.detail) == bool(words)
    assert words in refused.value.detail


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (None, "needs STRATA_JOIN_TOKEN"),
        ("guess", "STRATA_JOIN_TOKEN: not a join token"),
        (str(TOKENS.of("device")), "of the class device, not edge"),
    ],
)
def test_a_node_without_a_token_of_its_class_does_not_start(tmp_path: Path, token: str | None, why: str) -> None:
    settings = TierSettings(state_dir=tmp_path, common=CommonSettings(secure=True, join_token=token))
    with pytest.raises(BadInput, match=why):
        joined(EDGE, settings, "https://cloud")


@asynccontextmanager
async def renewing(keys: NodeKeys, cloud: FakeCloud) -> AsyncIterator[tuple[Renewal, list[float], Revocations]]:
    """A node with its certificate, which is renewed; the time that it sees; what it knows to be revoked."""
    now, revoked = [time.time()], Revocations(CloudKey())
    ask(keys, cloud)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(cloud)) as client:
        yield Renewal(keys, Caller(client), "https://cloud", revoked, clock=lambda: now[0]), now, revoked


async def test_a_certificate_is_renewed_when_two_thirds_of_its_time_have_passed(keys: NodeKeys) -> None:
    cloud = FakeCloud()
    async with renewing(keys, cloud) as (renewal, now, _):
        before: Any = keys.certificate
        now[0] = before.not_valid_after_utc.timestamp() - 3600 / 3 - 1
        await renewal.look()
        assert keys.certificate == before
        now[0] += 1
        await renewal.look()
        after: Any = keys.certificate
    assert after.serial_number != before.serial_number
    assert [bool(asked.secret) for asked in cloud.asked] == [True, False], "the certificate itself is shown, no token"
    assert json.loads(cloud.asked[1].model_dump_json())["name"] == "edge-1"


@pytest.mark.parametrize("after_s", [CHECK_S, SLEPT_S + 1])
async def test_a_node_hears_from_the_cloud_itself_whom_it_has_revoked(keys: NodeKeys, after_s: float) -> None:
    """Whatever its edge keeps back."""
    cloud = FakeCloud()
    async with renewing(keys, cloud) as (renewal, now, revoked):
        for _ in range(3):
            await renewal.look()
            now[0] += LOOK_S
        assert "a1" not in revoked
        now[0] += after_s - LOOK_S
        await renewal.look()
    assert "a1" in revoked
    assert len(cloud.asked) == 1, "the certificate still holds"


async def test_a_node_that_the_cloud_has_forgotten_asks_again_with_its_token(keys: NodeKeys) -> None:
    cloud = FakeCloud()
    async with renewing(keys, cloud) as (renewal, now, _):
        keys.join_secret, cloud.knows = TOKENS.of("edge").secret, False
        now[0] += CHECK_S
        await renewal.look()
        await renewal.look()
    assert [asked.secret for asked in cloud.asked] == [TOKENS.of("edge").secret] * 2


def test_an_answer_that_is_no_certificate_and_a_folder_with_two_authorities_are_refused(keys: NodeKeys) -> None:
    def odd(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, json={"authority": AUTHORITY.pem} if request.method == "GET" else {"x": 1}, headers=SAID
        )

    with pytest.raises(WireError, match="no CertificateAnswer"):
        ask(keys, odd)
    ask(keys, FakeCloud())
    path = keys.folder / "authority.pem"
    path.write_text(path.read_text() + STRANGER.pem)
    with pytest.raises(BadInput, match="not exactly one certificate"):
        NodeKeys(EDGE, keys.folder)
