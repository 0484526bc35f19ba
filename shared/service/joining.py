"""How a node gets its certificate from the cloud before it serves, and stays known to it afterwards."""

from __future__ import annotations

import itertools
import logging
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic import ValidationError

from shared.core.clocks import ahead_of, is_off, told_clock
from shared.core.errors import BadInput, Busy, Forbidden, TooMany, TooSlow, Unreachable, WireError
from shared.identity.authority import pem_of
from shared.identity.join_tokens import JoinToken, read_token
from shared.identity.names import CLOUD, Identity
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import Revocations
from shared.runtime.background import Repeating
from shared.service.api.identities import (
    AuthorityInfo,
    CertificateAnswer,
    CertificateRequest,
    CheckAnswer,
    CheckRequest,
)
from shared.service.connections import Connections
from shared.service.protocol import SAID, check_answered
from shared.service.remote_errors import remote_error
from shared.service.retry import backoff
from shared.service.settings import CommonSettings, TierSettings

if TYPE_CHECKING:
    from shared.service.client import Caller

log = logging.getLogger(__name__)
ANSWER_S = 10.0
"""Longest wait for an answer of the cloud."""
LOOK_S = 2.0
"""Seconds between two looks whether the certificate should be renewed."""
CHECK_S = 60.0
"""Seconds between two questions whether the cloud knows the node, and whom it has revoked."""
SLEPT_S = 2 * LOOK_S
"""A node that has not looked for longer was stopped meanwhile, and asks at once."""


def joined(identity: Identity, settings: TierSettings, cloud_url: str) -> NodeKeys:
    """Returns the keys of a node with a certificate, for which it waits.

    Raises:
        BadInput: no join token is set, or it is another class's.
        StrataError: the cloud refuses.
    """
    keys, token = NodeKeys(identity, settings.state_dir / "identity"), token_for(identity, settings.common)
    keys.join_secret = token.secret
    join(keys, cloud_url, token)
    return keys


def token_for(identity: Identity, common: CommonSettings) -> JoinToken:
    """Returns the join token of a node's class, as it is set.

    Raises:
        BadInput: none is set, or it is another class's.
    """
    field = "STRATA_JOIN_TOKEN"
    if not common.join_token:
        raise BadInput(f"STRATA_SECURE needs {field} or {field}_FILE", field=field)
    token = read_token(common.join_token, field)
    if token.node_class != identity.node_class:
        raise BadInput(f"{field} is of the class {token.node_class}, not {identity.node_class}", field=field)
    return token


def join(
    keys: NodeKeys,
    cloud_url: str,
    token: JoinToken,
    *,
    transport: httpx2.BaseTransport | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Gets a certificate, unless the node has one that holds; waits as long as the cloud cannot be reached.

    Args:
        keys: of the node; the certificate is kept there.
        cloud_url: address of the cloud (`https://...`).
        token: of the node's class.
        transport: replaces the network in tests.
        wait: sleeps between attempts.

    Raises:
        StrataError: the cloud refuses: a wrong token, or a name that is bound to another key.
    """
    for attempt in itertools.count():
        if keys.holds(token.fingerprint, time.time()):
            return
        try:
            return join_once(keys, cloud_url, token, transport)
        except (Unreachable, Busy, TooMany, TooSlow) as error:
            log.warning("%s waits for its certificate: %s", keys.identity, error.detail)
        wait(backoff(attempt))


def join_once(keys: NodeKeys, cloud_url: str, token: JoinToken, transport: httpx2.BaseTransport | None = None) -> None:
    """Gets a certificate, by one attempt; the arguments are those of `join`.

    The authority's certificate is fetched over a connection that is not checked, and checked by its fingerprint.

    Raises:
        Unreachable: the cloud does not answer.
        StrataError: it refuses.
    """
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    about = {"node_class": keys.identity.node_class, "name": keys.identity.name, "clock_s": f"{time.time():.0f}"}
    raw, date = _ask("GET", f"{cloud_url}/identities/authority", None, unchecked, transport, about)
    ahead_s = ahead_of(time.time(), date)
    authority = pem_of(_read(AuthorityInfo, raw).authority, token.fingerprint)
    if authority is None:
        raise Forbidden(f"the cloud at {cloud_url} is of another authority than the join token names")
    checked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    checked.load_verify_locations(cadata=authority)
    asked = CertificateRequest(
        node_class=keys.identity.node_class, name=keys.identity.name, request=keys.request(), secret=token.secret
    )
    try:
        raw, _ = _ask("POST", f"{cloud_url}/identities", asked.model_dump(), checked, transport)
    except Unreachable as error:
        if not is_off(ahead_s):
            raise
        why = f"{told_clock('this machine', ahead_s or 0.0)}, compared with the cloud's: set it, as by NTP"
        raise Unreachable(f"{why}; {error.detail}") from None
    answer = _read(CertificateAnswer, raw)
    keys.install(answer.certificate, authority, answer.store_password)


def _ask(
    method: str,
    url: str,
    body: Any,
    context: ssl.SSLContext,
    transport: httpx2.BaseTransport | None,
    params: Mapping[str, str] | None = None,
) -> tuple[bytes, str]:
    """The body of an answer, and when it was sent by the clock of the other side, as its header says."""
    try:
        with Connections(verify=context, timeout=ANSWER_S, transport=transport) as connections:
            name = {"sni_hostname": CLOUD.server_name}
            answer = connections.request(method, url, json=body, params=params, headers=SAID, extensions=name)
    except httpx2.HTTPError as error:
        raise Unreachable(f"the cloud at {url}: {type(error).__name__}: {error}") from None
    check_answered(answer)
    if answer.status_code != 200:
        raise remote_error(answer.status_code, bytearray(answer.content), url)
    return answer.content, answer.headers.get("date", "")


def _read(kind: Any, raw: bytes) -> Any:
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise WireError(f"the cloud answered with no {kind.__name__}: {error.error_count()} fields are wrong") from None


@asynccontextmanager
async def renewed(
    keys: NodeKeys | None,
    caller: Caller,
    cloud_url: str,
    revoked: Revocations,
    needed: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Renews a node's certificate while the context lasts; does nothing where nodes show none."""
    if keys is None:
        yield
        return
    renewal = Renewal(keys, caller, cloud_url, revoked, needed)
    renewal.start()
    try:
        yield
    finally:
        await renewal.stop()


class Renewal:
    """Keeps a node known to the cloud: renews its certificate before it ends, and hears whom the cloud has revoked.

    It asks the cloud itself, since edges that pass the list on may keep it back.

    Args:
        keys: of the node.
        caller: the HTTP client that shows the present certificate.
        cloud_url: address of the cloud.
        revoked: gets the list of revoked certificates.
        needed: whether it is to be renewed at once.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: NodeKeys,
        caller: Caller,
        cloud_url: str,
        revoked: Revocations,
        needed: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.keys, self.caller, self.cloud_url, self.revoked = keys, caller, cloud_url, revoked
        self.needed, self.clock = needed, clock
        self._checked_at = self._looked_at = clock()
        self._renewed_at = -math.inf
        self._is_known = True
        self._looking = Repeating(LOOK_S, self.look, "the certificate is not renewed")

    def start(self) -> None:
        """Begins to look whether the certificate should be renewed."""
        self._looking.start()

    async def stop(self) -> None:
        """Stops looking."""
        await self._looking.stop()

    async def look(self) -> None:
        """Renews the certificate if two thirds of its time have passed, if the cloud does not know it, or if needed.

        Raises:
            StrataError: the cloud cannot be reached, or refuses.
        """
        now, slept = self.clock(), abs(self.clock() - self._looked_at) > SLEPT_S
        self._looked_at = now
        if slept or abs(now - self._checked_at) >= CHECK_S:
            await self._check()
        if self._is_known and (self.clock() < self.keys.renew_at or self._just_renewed()) and not self.needed():
            return
        who, secret = self.keys.identity, self.keys.join_secret
        asked = CertificateRequest(node_class=who.node_class, name=who.name, request=self.keys.request(), secret=secret)
        raw = await self.caller.call_json(
            "POST", f"{self.cloud_url}/identities", asked.model_dump(), limit_s=ANSWER_S, peer=CLOUD
        )
        try:
            answer = CertificateAnswer.model_validate(raw)
        except ValidationError:
            raise WireError("the cloud answered with no certificate") from None
        self.keys.install(answer.certificate, answer.authority, answer.store_password)
        self._is_known, self._renewed_at = True, self.clock()
        log.info("%s has renewed its certificate", who)

    def _just_renewed(self) -> bool:
        """Whether it was renewed a short time ago: by a clock that is days ahead, each new certificate is old."""
        return abs(self.clock() - self._renewed_at) < CHECK_S

    async def _check(self) -> None:
        body = CheckRequest(revoked=self.revoked.issue).model_dump(mode="json")
        raw = await self.caller.call_json(
            "POST", f"{self.cloud_url}/identities/check", body, limit_s=ANSWER_S, peer=CLOUD
        )
        try:
            answer = CheckAnswer.model_validate(raw)
        except ValidationError:
            raise WireError("the cloud answered with no CheckAnswer") from None
        self._checked_at, self._is_known = self.clock(), answer.known
        self.revoked.cloud_key.trust(answer.cloud_key)
        self.revoked.take(answer.revoked)
