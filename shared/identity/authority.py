"""The certificate authority of an installation, which the cloud holds.

It signs a certificate for each node. Whoever trusts its own certificate, or knows that certificate's fingerprint, can
check who a node is. Keys are of the curve P-256, signatures ECDSA with SHA-256 (FIPS 186-5).
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.core.errors import BadInput, NotFound
from shared.core.locks import lock
from shared.identity.names import ANY_NODE, Identity

log = logging.getLogger(__name__)
AUTHORITY_DAYS = 3650
"""Days for which a new authority's own certificate holds."""
SKEW = timedelta(hours=1)
"""How far apart the clocks of two machines may be: a certificate holds from so long before it is signed."""
KEY_FILE, CERTIFICATE_FILE = "authority-key.pem", "authority.pem"


@dataclass(frozen=True)
class Authority:
    """A key that signs certificates, and the certificate of that key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        """The authority's certificate, which nodes trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the authority's certificate, in hexadecimal."""
        return fingerprint(self.certificate)

    def issue(
        self,
        request: str,
        identity: Identity,
        valid_s: float,
        hosts: Sequence[str] = (),
        now_s: float | None = None,
    ) -> x509.Certificate:
        """Signs a certificate that binds an identity to the key of a signing request.

        Args:
            request: the signing request (PEM); nothing in it but the key counts.
            identity: what the certificate says.
            valid_s: seconds until it ends.
            hosts: further DNS names and addresses by which users reach the node.
            now_s: seconds since the epoch; by default those of the clock.

        Raises:
            BadInput: the request is malformed, not signed with its own key, or that key is of another kind.
        """
        now = datetime.now(UTC) if now_s is None else datetime.fromtimestamp(now_s, UTC)
        names = [x509.DNSName(identity.server_name), x509.DNSName(ANY_NODE)]
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(identity.server_name))
            .issuer_name(self.certificate.subject)
            .public_key(public_key_of(request))
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(min(now + timedelta(seconds=valid_s), self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), *names, *map(_host, hosts)]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    # ---- files

    def save(self, folder: Path) -> None:
        """Writes key and certificate into a folder; only this user may read the key.

        Raises:
            FileExistsError: the folder holds an authority already.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_key(folder / KEY_FILE, self.key)
        (folder / CERTIFICATE_FILE).write_text(self.pem, encoding="ascii")


def make_authority(days: int = AUTHORITY_DAYS) -> Authority:
    """Returns a new authority, which has signed its own certificate."""
    key, now, subject = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC), _subject("StrataFL authority")
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def load_authority(folder: Path) -> Authority:
    """Returns the authority of a folder.

    Raises:
        NotFound: the folder holds none.
        BadInput: its files are damaged, do not belong together, or are no authority's.
    """
    paths = folder / KEY_FILE, folder / CERTIFICATE_FILE
    if not all(path.is_file() for path in paths):
        raise NotFound(f"no authority in {folder}: it holds {KEY_FILE} and {CERTIFICATE_FILE} (`strata certs init`)")
    return read_authority(*(path.read_bytes() for path in paths))


def authority_of(folder: Path) -> Authority:
    """Returns the authority of a folder, which is made where there is none.

    Raises:
        BadInput: its files are damaged, do not belong together, or are no authority's.
    """
    with locked(folder):
        try:
            return load_authority(folder)
        except NotFound:
            make_authority().save(folder)
            log.info("a new authority is in %s: whoever reads that folder can be any node", folder)
            return load_authority(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from making the files of an authority's folder at the same time.

    A folder that this process may only read, as one of Docker secrets, needs no lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        yield
        return
    with (folder / ".lock").open("ab") as file:
        lock(file.fileno(), file.name, wait=True)
        yield


def read_authority(key: bytes, certificate: bytes) -> Authority:
    """Returns an authority from its key and its certificate (PEM).

    Raises:
        BadInput: they cannot be read, do not belong together, or may not sign certificates.
    """
    try:
        read_key = serialization.load_pem_private_key(key, password=None)
        read = x509.load_pem_x509_certificate(certificate)
        constraints = read.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise BadInput(f"the authority cannot be read: {error}") from None
    if not isinstance(read_key, ec.EllipticCurvePrivateKey) or read_key.curve.name != "secp256r1":
        raise BadInput("the authority's key is not of the curve P-256")
    if read.public_key() != read_key.public_key():
        raise BadInput("the authority's certificate belongs to another key")
    if not constraints.ca:
        raise BadInput("the certificate is not an authority's: it may not sign others")
    return Authority(read_key, read)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a private key, which only this user may read.

    Raises:
        FileExistsError: there is such a file.
    """
    data = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def one_certificate(text: str) -> str:
    """Returns a certificate (PEM) as it is written by us.

    Raises:
        BadInput: the text holds none, or several, of which a reader may take another one than was checked.
    """
    try:
        (certificate,) = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise BadInput("not exactly one certificate (PEM)") from None
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def pem_of(text: str, expected: str) -> str | None:
    """Returns the one certificate (PEM) of a text if its fingerprint is the expected one, otherwise None."""
    try:
        pem = one_certificate(text)
    except BadInput:
        return None
    return pem if fingerprint(x509.load_pem_x509_certificate(pem.encode())) == expected else None


def renew_at(certificate: x509.Certificate) -> float:
    """Seconds since the epoch from which a certificate should be renewed: two thirds of its time have passed."""
    begins, ends = (certificate.not_valid_before_utc + SKEW).timestamp(), certificate.not_valid_after_utc.timestamp()
    return begins + (ends - begins) * 2 / 3


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def public_key_of(request: str) -> ec.EllipticCurvePublicKey:
    """Returns the key of a signing request (PEM).

    Raises:
        BadInput: the request is malformed, not signed with its own key, or that key is not of the curve P-256.
    """
    try:
        read = x509.load_pem_x509_csr(request.encode())
        key, signed = read.public_key(), read.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise BadInput(f"the signing request cannot be read: {error}", field="request") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise BadInput("the key of the signing request is not of the curve P-256", field="request")
    if not signed:
        raise BadInput("the signing request is not signed with its own key", field="request")
    return key


def key_digest(key: ec.EllipticCurvePublicKey) -> str:
    """The SHA-256 of a public key, in hexadecimal."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
