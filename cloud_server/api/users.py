"""The endpoints of `/tokens`: the administrator adds, lists and removes users; a user sees their own limits."""

from __future__ import annotations

from fastapi import APIRouter, Request

from cloud_server.api.runs import Name
from cloud_server.dependencies import OWNER_WRITES, TheCloud
from shared.service.api.users import NewToken, TokenAnswer, UserPage
from shared.service.auth import ONLY_ADMIN, guarded, user_of
from shared.service.json_bodies import unambiguous
from shared.service.openapi import problems

router = APIRouter(tags=["users"], dependencies=[guarded("API"), OWNER_WRITES, unambiguous()])


@router.get("/tokens")
async def users(cloud: TheCloud, request: Request) -> UserPage:
    """The users, by name, with their limits and what they use of these; to a user, that user alone."""
    return UserPage(users=tuple(await cloud.runs.quotas.infos(user_of(request))))


@router.post("/tokens", status_code=201, dependencies=[ONLY_ADMIN], responses=problems(409, 429))
async def add(body: NewToken, cloud: TheCloud) -> TokenAnswer:
    """Add a user; the answer has the token, which is kept nowhere. Runs of an earlier user of that name are theirs."""
    user, token = await cloud.users.add(body)
    return TokenAnswer(name=user.name, token=token)


@router.delete("/tokens/{name}", status_code=204, dependencies=[ONLY_ADMIN], responses=problems(404))
async def remove(name: Name, cloud: TheCloud) -> None:
    """Make a user's token void. The user's runs stay as they are, and go on."""
    await cloud.users.remove(name)
