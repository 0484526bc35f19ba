"""What a node shows others, and how it knows them: its key, its certificate and the authority, in its state folder."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shared.core.errors import BadInput
from shared.core.files import write_file
from shared.identity.authority import fingerprint, one_certificate, renew_at, write_key
from shared.identity.names import Identity

KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "node-key.pem", "node.pem", "authority.pem"
PASSWORD_FILE = "store-password"  # noqa: S105  a file's name


@dataclass
class NodeKeys:
    """The key pair of a node, drawn once, and the certificate that it has got.

    Attributes:
        identity: of the node.
        folder: holds the files.
        server: accepts connections, with or without a certificate of the other side: the routes decide.
        client: opens connections to nodes whose certificate this authority signed.
        join_secret: that of the node's join token, where it has one.
    """

    identity: Identity
    folder: Path
    server: ssl.SSLContext = field(init=False)
    client: ssl.SSLContext = field(init=False)
    join_secret: str = ""

    def __post_init__(self) -> None:
        self.server, self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.server.verify_mode = ssl.CERT_OPTIONAL
        for context in (self.server, self.client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.server.set_alpn_protocols(["http/1.1"])
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / KEY_FILE).exists():
            write_key(self.folder / KEY_FILE, ec.generate_private_key(ec.SECP256R1()))
        if self.certificate is not None:
            self._load()

    @property
    def certificate(self) -> x509.Certificate | None:
        """The node's certificate, None before it has one."""
        path = self.folder / CERTIFICATE_FILE
        return x509.load_pem_x509_certificate(path.read_bytes()) if path.exists() else None

    @property
    def renew_at(self) -> float:
        """Seconds since the epoch from which the certificate should be renewed: two thirds of its time have passed."""
        found = self.certificate
        return 0.0 if found is None else renew_at(found)

    def holds(self, authority: str, now: float) -> bool:
        """Whether the node has a certificate, of the authority with this fingerprint, that has not ended."""
        found, path = self.certificate, self.folder / AUTHORITY_FILE
        if found is None or not path.exists():
            return False
        signer = x509.load_pem_x509_certificate(path.read_bytes())
        return fingerprint(signer) == authority and now < found.not_valid_after_utc.timestamp()

    def request(self) -> str:
        """A signing request for the node's key (PEM)."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(self.private_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    @property
    def store_password(self) -> str:
        """The password with which the node reaches its keys in Redis; empty if it needs none."""
        path = self.folder / PASSWORD_FILE
        return path.read_text(encoding="ascii") if path.exists() else ""

    def install(self, certificate: str, authority: str, store_password: str = "") -> None:
        """Keeps a certificate, which new connections show from now on.

        Args:
            certificate: of this node (PEM).
            authority: the certificate of the authority that signed it (PEM).
            store_password: for Redis.

        Raises:
            BadInput: it is for another key or another node, or another authority signed it.
        """
        try:
            read, signer = (x509.load_pem_x509_certificate(text.encode()) for text in (certificate, authority))
            read.verify_directly_issued_by(signer)
            names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
            raise BadInput(f"the certificate cannot be used: {type(error).__name__} {error}".rstrip()) from None
        if read.public_key() != self.private_key().public_key():
            raise BadInput("the certificate is for another key")
        if names.get_values_for_type(x509.UniformResourceIdentifier) != [self.identity.uri]:
            raise BadInput(f"the certificate is not that of {self.identity}")
        # Written anew: a text may hold further certificates.
        certificate, authority = (each.public_bytes(serialization.Encoding.PEM).decode() for each in (read, signer))
        files = {AUTHORITY_FILE: authority, PASSWORD_FILE: store_password, CERTIFICATE_FILE: certificate}
        for name, text in files.items():
            write_file(self.folder / name, text.encode(), mode=0o600)
        self._load()

    def _load(self) -> None:
        for context in (self.server, self.client):
            context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
            context.load_verify_locations(cadata=one_certificate((self.folder / AUTHORITY_FILE).read_text("ascii")))

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """The node's private key.

        Raises:
            BadInput: the file holds another kind of key.
        """
        found = serialization.load_pem_private_key((self.folder / KEY_FILE).read_bytes(), password=None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{self.folder / KEY_FILE} holds no key of this node")
        return found
