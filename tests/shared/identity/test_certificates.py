"""The authority, its certificates and join tokens: who passes a TLS handshake as whom, and who does not."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shared.core.errors import BadInput, Forbidden, NotFound, Unauthorised
from shared.identity import authority as authorities
from shared.identity.authority import Authority, fingerprint, load_authority, make_authority
from shared.identity.join_tokens import draw_secret, load_tokens, read_token
from shared.identity.names import ANY_NODE, CLOUD, Identity, Peer, peer_of, serial_text
from shared.identity.node_keys import NodeKeys

DAY_S = 86400.0
EDGE = Identity(node_class="edge", name="edge-1")
DEVICE = Identity(node_class="device", name="A_strange.Name")


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority()


@pytest.fixture
def edge(tmp_path: Path, authority: Authority) -> NodeKeys:
    return node(tmp_path, authority, EDGE)


@pytest.fixture
def device(tmp_path: Path, authority: Authority) -> NodeKeys:
    return node(tmp_path, authority, DEVICE)


def node(folder: Path, authority: Authority, identity: Identity, valid_s: float = DAY_S) -> NodeKeys:
    """Returns a node with a certificate."""
    keys = NodeKeys(identity, folder / identity.server_name)
    keys.install(pem(authority.issue(keys.request(), identity, valid_s)), authority.pem)
    return keys


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Connects the two in memory; returns the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    waiting: list[Callable[[], None]] = [theirs.do_handshake, ours.do_handshake]
    while waiting:
        for step in list(waiting):
            try:
                step()
                waiting.remove(step)
            except ssl.SSLWantReadError:
                continue
    return ours


def shown(server: NodeKeys, client: NodeKeys, name: str = EDGE.server_name) -> Peer:
    """Whom the server sees in a client that asks for a name."""
    certificate = handshake(server.server, client.client, name).getpeercert()
    assert certificate
    return peer_of(certificate)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def certificate_of(keys: NodeKeys) -> x509.Certificate:
    assert keys.certificate is not None
    return keys.certificate


# ---- connections


@pytest.mark.parametrize("name", [EDGE.server_name, ANY_NODE])
def test_two_nodes_know_each_others_identity(edge: NodeKeys, device: NodeKeys, authority: Authority, name: str) -> None:
    seen, own = shown(edge, device, name), certificate_of(device)
    assert seen.identity == DEVICE
    assert (int(seen.serial, 16), seen.not_after) == (own.serial_number, own.not_valid_after_utc.timestamp())
    device.install(pem(authority.issue(device.request(), DEVICE, DAY_S)), authority.pem)
    renewed = shown(edge, device, name)
    assert (renewed.identity, renewed.serial != seen.serial) == (DEVICE, True), "new connections show the new one"


def test_other_nodes_and_ended_certificates_are_refused(
    tmp_path: Path, edge: NodeKeys, device: NodeKeys, authority: Authority
) -> None:
    for other in (CLOUD, EDGE.replace(name="edge-2"), EDGE.replace(node_class="device")):
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            shown(edge, device, other.server_name)
    stranger = make_authority()
    strange_edge, strange_device = (node(tmp_path / "stranger", stranger, each) for each in (EDGE, DEVICE))
    strange_device.client.load_verify_locations(cadata=authority.pem)  # it trusts the edge; the edge does not trust it
    for server, client in ((strange_edge, device), (edge, strange_device)):
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
            shown(server, client)
    late = node(tmp_path, authority, DEVICE, valid_s=-1.0)  # it began some minutes ago, for clocks that are behind
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        shown(edge, late)


def test_a_client_without_certificate_is_let_in_and_is_nobody(edge: NodeKeys, authority: Authority) -> None:
    user = ssl.create_default_context(cadata=authority.pem)
    assert handshake(edge.server, user, ANY_NODE).getpeercert() is None


def test_the_authority_can_sign_no_other_authority(edge: NodeKeys, device: NodeKeys) -> None:
    """A node's key is no authority's: what it signs is not accepted."""
    key = serialization.load_pem_private_key((device.folder / "node-key.pem").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    forged = Authority(key, certificate_of(device)).issue(device.request(), CLOUD, DAY_S)
    (device.folder / "chain.pem").write_text(pem(forged) + pem(certificate_of(device)), encoding="ascii")
    device.client.load_cert_chain(device.folder / "chain.pem", device.folder / "node-key.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        shown(edge, device)


def test_users_may_reach_a_node_by_further_names(tmp_path: Path, authority: Authority) -> None:
    keys = NodeKeys(CLOUD, tmp_path)
    keys.install(pem(authority.issue(keys.request(), CLOUD, DAY_S, ["cloud.example", "127.0.0.1"])), authority.pem)
    user = ssl.create_default_context(cadata=authority.pem)
    for name in ("cloud.example", "127.0.0.1"):
        handshake(keys.server, user, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys.server, user, "127.0.0.2")


def test_a_serial_number_is_the_same_text_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL writes whole bytes: a revocation must hold also for a number that begins with zeros."""
    monkeypatch.setattr(x509, "random_serial_number", lambda: 0xABC)
    authority = make_authority()
    seen = shown(node(tmp_path, authority, EDGE), node(tmp_path, authority, DEVICE)).serial
    assert seen == serial_text(0xABC) == "abc"


# ---- names in certificates


ODD = ("strata://user/x", "strata://edge/", "strata://edge/a b", "strata://edge/edge-1\n", "https://edge/edge-1")


@pytest.mark.parametrize("uris", [[], ["strata://edge/edge-1", "strata://cloud/cloud"], *([uri] for uri in ODD)])
def test_a_certificate_without_exactly_one_identity_names_nobody(uris: list[str]) -> None:
    names = [("DNS", "edge"), *(("URI", uri) for uri in uris)]
    with pytest.raises(Forbidden, match="names no node"):
        peer_of({"subjectAltName": names, "serialNumber": "01", "notAfter": "Jan  1 00:00:00 2030 GMT"})


def test_server_names_are_dns_names_and_differ() -> None:
    every = product(("edge", "device"), ("edge-1", "edge_1", "Edge-1", "x" * 64))
    names = {Identity(node_class=kind, name=name).server_name for kind, name in every}
    assert len(names) == 8
    assert all(label.isalnum() and len(label) < 64 for name in names for label in name.split("."))


# ---- signing requests and installing


def a_request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def test_a_request_that_is_malformed_or_of_another_kind_of_key_is_refused(authority: Authority) -> None:
    good = a_request(ec.generate_private_key(ec.SECP256R1()))
    lines = good.splitlines()
    letter = "A" if lines[2][5] != "A" else "B"
    changed = "\n".join([*lines[:2], lines[2][:5] + letter + lines[2][6:], *lines[3:]])
    others = (a_request(rsa.generate_private_key(65537, 2048)), a_request(ec.generate_private_key(ec.SECP384R1())))
    for request in ("", "x" * 10_000, good[:-40], changed, *others):
        with pytest.raises(BadInput, match="signing request") as refused:
            authority.issue(request, EDGE, DAY_S)
        assert refused.value.field == "request"


def test_what_a_request_says_beside_its_key_does_not_count(authority: Authority) -> None:
    """A node asks for another identity in its request; the certificate says what the cloud says."""
    claims = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(CLOUD.uri)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).add_extension(claims, critical=True)
    signed = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    issued = authority.issue(signed.public_bytes(serialization.Encoding.PEM).decode(), EDGE, DAY_S)
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["strata://edge/edge-1"]


def test_a_node_refuses_a_certificate_that_is_not_its_own(tmp_path: Path, authority: Authority) -> None:
    keys, other = NodeKeys(EDGE, tmp_path / "own"), NodeKeys(EDGE, tmp_path / "other")
    cases = {
        "another key": pem(authority.issue(other.request(), EDGE, DAY_S)),
        "not that of edge edge-1": pem(authority.issue(keys.request(), DEVICE, DAY_S)),
        "cannot be used": pem(make_authority().issue(keys.request(), EDGE, DAY_S)),
        "cannot be used: ValueError": "nonsense",
    }
    for why, certificate in cases.items():
        with pytest.raises(BadInput, match=why):
            keys.install(certificate, authority.pem)
    assert keys.certificate is None


def test_a_node_keeps_its_key_and_certificate_across_restarts(edge: NodeKeys, device: NodeKeys) -> None:
    again = NodeKeys(EDGE, edge.folder)
    assert again.certificate == edge.certificate
    assert shown(again, device).identity == DEVICE
    assert mode_of(edge.folder / "node-key.pem") == 0o600


def test_a_certificate_is_renewed_after_two_thirds_of_its_time(tmp_path: Path, authority: Authority) -> None:
    keys = NodeKeys(EDGE, tmp_path)
    assert keys.renew_at == 0.0
    keys.install(pem(authority.issue(keys.request(), EDGE, 3 * DAY_S)), authority.pem)
    ends = certificate_of(keys).not_valid_after_utc.timestamp()
    assert ends - keys.renew_at == pytest.approx(DAY_S, rel=0.01)  # what lies before its issue does not count


# ---- the authority's files


def test_an_authority_is_read_back_and_never_overwritten(tmp_path: Path, authority: Authority) -> None:
    authority.save(tmp_path / "ca")
    found = load_authority(tmp_path / "ca")
    assert found.fingerprint == authority.fingerprint == fingerprint(authority.certificate)
    assert mode_of(tmp_path / "ca" / "authority-key.pem") == 0o600
    with pytest.raises(FileExistsError):
        make_authority().save(tmp_path / "ca")
    assert load_authority(tmp_path / "ca").fingerprint == authority.fingerprint
    with pytest.raises(NotFound, match="strata certs init"):
        load_authority(tmp_path)


def test_processes_that_start_together_make_one_authority_and_one_secret(tmp_path: Path) -> None:
    def started(_: int) -> str:
        authority = authorities.authority_of(tmp_path / "ca")
        return str(load_tokens(tmp_path / "ca", authority.fingerprint).of("edge"))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(started, range(32)))) == 1


def test_files_that_are_no_authority_are_refused(tmp_path: Path, authority: Authority) -> None:
    authority.save(tmp_path)
    key, certificate = (tmp_path / "authority-key.pem").read_bytes(), authority.pem.encode()
    edge = NodeKeys(EDGE, tmp_path / "edge")
    issued = pem(authority.issue(edge.request(), EDGE, DAY_S)).encode()
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    cases = {
        "cannot be read": (b"nonsense", certificate),
        "P-256": (rsa_key, certificate),
        "another key": (key, make_authority().pem.encode()),
        "may not sign others": ((tmp_path / "edge" / "node-key.pem").read_bytes(), issued),
    }
    for why, files in cases.items():
        with pytest.raises(BadInput, match=why):
            authorities.read_authority(*files)


# ---- join tokens


def test_a_token_opens_its_own_class_only(tmp_path: Path) -> None:
    tokens = load_tokens(tmp_path, "f" * 64)
    token = tokens.of("device")
    assert read_token(f" {token}\n") == token
    assert str(token).startswith(f"strata-device-{'f' * 64}-")
    load_tokens(tmp_path, "f" * 64).check("device", token.secret)
    assert mode_of(tmp_path / "join-secret") == 0o600
    for node_class, secret in (("edge", token.secret), ("device", ""), ("device", token.secret[:-1]), ("device", "ü")):
        with pytest.raises(Unauthorised, match=f"class {node_class}"):
            tokens.check(node_class, secret)  # type: ignore[arg-type]
    draw_secret(tmp_path)  # makes earlier tokens void
    assert mode_of(tmp_path / "join-secret") == 0o600
    with pytest.raises(Unauthorised):
        load_tokens(tmp_path, "f" * 64).check("device", token.secret)


@pytest.mark.parametrize("text", ["", "secret", "strata-edge-12-34", "strata-user-" + "f" * 64 + "-" + "e" * 64])
def test_what_is_no_token_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(BadInput, match="strata certs token") as refused:
        read_token(text, "STRATA_JOIN_TOKEN")
    assert not text or text not in refused.value.detail
