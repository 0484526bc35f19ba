"""The endpoints of `/identities`: nodes get certificates, users see and revoke them. Only in secure mode."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from cloud_server.dependencies import TheCloud
from cloud_server.nodes.identities import Identities
from cloud_server.nodes.revocation import announce, forget
from shared.core.bounds import MAX_AMOUNT
from shared.core.errors import Forbidden, NotFound, Unauthorised
from shared.core.validation import ID, Id
from shared.identity.names import Identity, NodeClass
from shared.identity.signing import NEVER
from shared.service.api.identities import (
    AuthorityInfo,
    CertificateAnswer,
    CertificateRequest,
    CheckAnswer,
    CheckRequest,
    IdentityPage,
)
from shared.service.auth import ONLY_ADMIN, guarded
from shared.service.openapi import problems
from shared.service.peers import peer_in


async def identities_of(cloud: TheCloud) -> Identities:
    """The identities of nodes.

    Raises:
        NotFound: nodes show no certificates here.
    """
    if cloud.identities is None:
        raise NotFound("nodes show no certificates here: STRATA_SECURE is not set")
    return cloud.identities


TheIdentities = Annotated[Identities, Depends(identities_of)]
open_router = APIRouter(tags=["identities"], responses=problems(404, 409), dependencies=[guarded("joining")])
router = APIRouter(tags=["identities"], responses=problems(404), dependencies=[guarded("API")])


@open_router.get("/identities/authority")
async def authority(
    identities: TheIdentities,
    node_class: NodeClass | None = None,
    name: Annotated[str | None, Query(pattern=ID)] = None,
    clock_s: Annotated[float | None, Query(ge=0, le=MAX_AMOUNT)] = None,
) -> AuthorityInfo:
    """The certificate of the authority; whoever has a join token knows its fingerprint.

    A node says who it is and what its clock shows: if that is wrong, it will not take the cloud's certificate.
    """
    if node_class is not None and name is not None and clock_s is not None:
        identities.note_clock(str(Identity(node_class=node_class, name=name)), clock_s - time.time())
    return AuthorityInfo(authority=identities.authority.pem)


@open_router.post("/identities", responses=problems(401, 403, 409))
async def certificate(asked: CertificateRequest, request: Request, identities: TheIdentities) -> CertificateAnswer:
    """Sign a certificate for a node that shows the join token of its class, or its present certificate."""
    return await identities.issue(asked, peer_in(request))


@open_router.post("/identities/check", responses=problems(401, 403))
async def check(asked: CheckRequest, request: Request, cloud: TheCloud, identities: TheIdentities) -> CheckAnswer:
    """Tell a node, by its certificate, whether its key is known and which certificates have been revoked."""
    peer = peer_in(request)
    if peer is None:
        raise Unauthorised("only a node may ask this: it needs a certificate")
    if peer.serial in identities.revoked:
        raise Forbidden(f"the certificate of {peer.identity} has been revoked")
    known = await identities.is_bound(peer.identity)
    return CheckAnswer(known=known, cloud_key=cloud.signed_by, revoked=cloud.revoked_since(asked.revoked))


@router.get("/identities")
async def identities_page(identities: TheIdentities) -> IdentityPage:
    """The nodes that have certificates."""
    return IdentityPage(identities=tuple(await identities.infos()))


@router.delete("/identities/{node_class}/{name}", status_code=204, dependencies=[ONLY_ADMIN])
async def revoke(node_class: NodeClass, name: Id, cloud: TheCloud, identities: TheIdentities) -> None:
    """Revoke the certificates of a node: no tier answers it any more, and its name is free for another key."""
    await identities.revoke(Identity(node_class=node_class, name=name))
    await forget(cloud.registry, node_class, name)
    await announce(cloud.registry, cloud.revoked_since(NEVER))
