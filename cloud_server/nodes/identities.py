"""The identities of nodes: which key each name is bound to, and which certificates have been revoked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from cloud_server.nodes.revoked import Revoked
from cloud_server.nodes.store_users import StoreUsers
from shared.core.clocks import is_off, told_clock
from shared.core.errors import Conflict, Forbidden, NotFound, TooMany
from shared.core.files import write_file
from shared.core.records import Record
from shared.identity.authority import Authority, key_digest, public_key_of, renew_at, signed_by
from shared.identity.join_tokens import JoinTokens
from shared.identity.names import CLASSES, CLOUD, Identity, Peer, class_of, serial_text
from shared.identity.node_keys import NodeKeys
from shared.runtime.background import Repeating
from shared.service.api.identities import CertificateAnswer, CertificateRequest, IdentityInfo
from shared.storage import redis_keys
from shared.storage.key_value import Batch, Store, StoreUnavailable

log = logging.getLogger(__name__)
CLOCK_S = 60.0
"""Seconds for which `/readyz` tells of the wrong clock of a node that joins."""
MOST_CLOCKS = 100
"""Nodes whose wrong clocks are told: whoever reaches the cloud may call itself a node."""
LOOK_S = 60.0
"""Seconds between two looks whether the cloud's own certificate should be renewed."""
MAX_NAMES = 200_000
"""Nodes of a class that have certificates: whoever has its join token can ask for any number."""
FORGET_S = 86400.0
"""Seconds after the end of its last certificate for which a name stays bound to its key."""


class Binding(Record):
    """What the cloud keeps of a name.

    Attributes:
        key_sha256: of the public key to which the name is bound.
        certificates: the ends of its certificates (seconds since the epoch) by serial number (hexadecimal).
        newest: its newest certificate (PEM).
    """

    identity: Identity
    key_sha256: str
    certificates: dict[str, float]
    newest: str


class Identities:
    """Signs certificates of nodes, and revokes them.

    Args:
        store: keeps the bindings of names to keys.
        keys: the cloud's own.
        authority: signs.
        tokens: reads the join tokens, which may change.
        valid_s: seconds for which a certificate holds.
        hosts: names and addresses by which users reach the cloud.
        revoked: the certificates that have been revoked and have not ended.
        clock: seconds since the epoch.
        users: of Redis; None if it knows none of ours.
        join_dir: gets the tokens when they have changed, see `write_tokens`.
    """

    def __init__(
        self,
        store: Store,
        keys: NodeKeys,
        authority: Authority,
        tokens: Callable[[], JoinTokens],
        valid_s: float,
        hosts: Sequence[str],
        revoked: Revoked,
        clock: Callable[[], float] = time.time,
        users: StoreUsers | None = None,
        join_dir: Path | None = None,
    ) -> None:
        self.users, self.join_dir = users, join_dir
        self.store, self.keys, self.authority, self.tokens = store, keys, authority, tokens
        self.valid_s, self.hosts, self.revoked, self.clock = valid_s, hosts, revoked, clock
        self._looking = Repeating(LOOK_S, self._look, "certificates")
        self._n_names: Counter[str] = Counter()
        self._wrong_clocks: dict[str, tuple[float, str]] = {}
        self._lock = asyncio.Lock()

    def note_clock(self, who: str, ahead_s: float) -> None:
        """Note the clock of a node that joins, as it calls itself; a wrong one is logged once for each node."""
        if not is_off(ahead_s):
            self._wrong_clocks.pop(who, None)
        elif who in self._wrong_clocks or len(self._wrong_clocks) < MOST_CLOCKS:
            text, known = told_clock(who, ahead_s), who in self._wrong_clocks
            self._wrong_clocks[who] = self.clock(), text
            log.log(logging.DEBUG if known else logging.WARNING, "%s, compared with the cloud's, and joins", text)

    def wrong_clocks(self) -> list[str]:
        """The nodes with wrong clocks that have tried to join in the last `CLOCK_S` seconds, in words."""
        return [text for at, text in self._wrong_clocks.values() if abs(self.clock() - at) < CLOCK_S]

    async def start(self) -> None:
        """Read what has been revoked, and begin to renew the cloud's own certificate."""
        if self.users is not None:
            await self.users.start()
        with suppress(StoreUnavailable):  # then it is read as soon as Redis answers
            await self.load()
        self._looking.start()

    async def stop(self) -> None:
        """Stop that."""
        await self._looking.stop()
        if self.users is not None:
            await self.users.stop()

    async def _look(self) -> None:
        await self.load()
        if self.join_dir is not None:
            write_tokens(self.tokens(), self.authority, self.join_dir)
        if self.clock() >= self.keys.renew_at:
            issue_own(self.keys, self.authority, self.valid_s, self.hosts)

    async def load(self) -> None:
        """Read which certificates are revoked and which names are bound, now and by earlier cloud processes."""
        await self.revoked.load(self.store)
        uris = [redis_keys.last_part(key) for key in await self.store.keys(redis_keys.CLOUD_IDENTITIES)]
        self._n_names = Counter(class_of(uri) for uri in uris)

    async def issue(self, asked: CertificateRequest, peer: Peer | None) -> CertificateAnswer:
        """Sign a certificate for a node.

        A node that asks again gets the same one until two thirds of its time have passed: so few certificates of a name
        hold, and all of them are known when it is revoked.

        Args:
            asked: by the node.
            peer: who asks, where the connection shows a certificate: a node may renew its own without a join token.

        Raises:
            Unauthorised: the join token is wrong.
            Forbidden: the class has one node, the cloud; or the certificate that is shown has been revoked.
            Conflict: the name is bound to another key, or was asked for by two at the same time.
            TooMany: `MAX_NAMES` nodes of the class have certificates.
            BadInput: the signing request is malformed.
        """
        async with self._lock:  # a revocation is over before the next request, or after it
            return await self._issue(asked, peer)

    async def _issue(self, asked: CertificateRequest, peer: Peer | None) -> CertificateAnswer:
        identity = Identity(node_class=asked.node_class, name=asked.name)
        if identity.node_class == CLOUD.node_class:
            raise Forbidden("the cloud makes its own certificate", field="node_class")
        if peer is not None and peer.serial in self.revoked:
            raise Forbidden(f"the certificate of {peer.identity} has been revoked")
        key, digest = redis_keys.cloud_identity(identity.uri), key_digest(public_key_of(asked.request))
        data = await self.store.get(key)
        before = Binding.model_validate_json(data) if data else None
        renews = peer is not None and peer.identity == identity and self.clock() <= peer.not_after
        if not renews or before is None:
            self.tokens().check(identity.node_class, asked.secret)
        if before is not None and before.key_sha256 != digest:
            raise Conflict(
                f"the name of {identity} is bound to another key; `strata revoke` sets it free", field="name"
            )
        if before is None and self._n_names[identity.node_class] >= MAX_NAMES:
            raise TooMany(f"{MAX_NAMES} nodes of the class {identity.node_class} have certificates, no more may")
        if before is None or self.clock() >= self._renew_at(before.newest):
            binding = self._signed(asked.request, identity, digest, before)
            # Guarded: of two keys that ask for a name at the same time, one gets it.
            left_s = max(binding.certificates.values()) - self.clock() + FORGET_S
            put = Batch().expect(key, data).put(key, binding.model_dump_json().encode(), left_s)
            await self.store.commit(put)
            self._n_names[identity.node_class] += before is None
        else:
            binding = before
        password = await self.users.let_in(identity, digest) if self.users else ""
        return CertificateAnswer(certificate=binding.newest, authority=self.authority.pem, store_password=password)

    def _renew_at(self, pem: str) -> float:
        """When a node gets another certificate, in seconds since the epoch; 0 if another authority signed this one."""
        certificate = x509.load_pem_x509_certificate(pem.encode())
        return renew_at(certificate) if signed_by(certificate, self.authority.certificate) else 0.0

    def _signed(self, request: str, identity: Identity, key_sha256: str, before: Binding | None) -> Binding:
        """The binding with a new certificate."""
        certificate = self.authority.issue(request, identity, self.valid_s, now_s=self.clock())
        serial, ends = serial_text(certificate.serial_number), certificate.not_valid_after_utc.timestamp()
        known = {} if before is None else before.certificates
        alive = {number: end for number, end in known.items() if end > self.clock()}
        log.info("%s has a certificate until %s", identity, certificate.not_valid_after_utc.isoformat())
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        return Binding(identity=identity, key_sha256=key_sha256, certificates={**alive, serial: ends}, newest=pem)

    async def revoke(self, identity: Identity) -> None:
        """Revoke all certificates of a node, and set its name free for another key.

        Raises:
            NotFound: no node has this identity.
        """
        async with self._lock:
            key = redis_keys.cloud_identity(identity.uri)
            data = await self.store.get(key)
            if data is not None:
                found = Binding.model_validate_json(data).certificates
                alive = {serial: end for serial, end in found.items() if end > self.clock()}
                self.revoked.add(alive)
                await self.store.commit(self.revoked.into(Batch().expect(key, data).delete(key), alive))
                self._n_names[identity.node_class] -= 1
                log.warning("the certificates of %s have been revoked", identity)
            if self.users is not None:  # also if an earlier attempt came no further
                await self.users.shut_out(identity)
        if data is None:
            raise NotFound(f"{identity} has no certificate")

    async def is_bound(self, identity: Identity) -> bool:
        """Whether the cloud knows the key of a node: not after Redis was emptied."""
        return await self.store.get(redis_keys.cloud_identity(identity.uri)) is not None

    async def _bindings(self) -> list[Binding]:
        stored = (await self.store.scan(redis_keys.CLOUD_IDENTITIES)).values()
        return [Binding.model_validate_json(data) for data in stored]

    async def infos(self) -> list[IdentityInfo]:
        """The nodes that have certificates, by class and name."""
        bindings = sorted(await self._bindings(), key=lambda binding: binding.identity.uri)
        return [
            IdentityInfo(
                node_class=binding.identity.node_class,
                name=binding.identity.name,
                key_sha256=binding.key_sha256,
                not_after=max(binding.certificates.values()),
            )
            for binding in bindings
        ]


def write_tokens(tokens: JoinTokens, authority: Authority, folder: Path) -> None:
    """Write each class's join token into a folder of its own below this one, from which its nodes read it.

    The folder `public` gets the authority's certificate, for programs that call nodes and are none.
    """
    joining = [node_class for node_class in CLASSES if node_class != CLOUD.node_class]
    files = {f"{node_class}/token": str(tokens.of(node_class)) for node_class in joining}
    for name, text in {**files, "public/authority.pem": authority.pem}.items():
        path = folder / name
        if path.exists() and path.read_text(encoding="ascii") == text:
            continue
        write_file(path, text.encode(), mode=0o644 if path.parent.name == "public" else 0o600)


def cloud_keys(authority: Authority, state_dir: Path, valid_s: float, hosts: Sequence[str]) -> NodeKeys:
    """The keys of the cloud itself, with a new certificate, which its own authority signs."""
    keys = NodeKeys(CLOUD, state_dir / "identity")
    issue_own(keys, authority, valid_s, hosts)
    return keys


def issue_own(keys: NodeKeys, authority: Authority, valid_s: float, hosts: Sequence[str]) -> None:
    """Sign a new certificate of the cloud with its own authority."""
    certificate = authority.issue(keys.request(), CLOUD, valid_s, hosts)
    keys.install(certificate.public_bytes(serialization.Encoding.PEM).decode(), authority.pem)
