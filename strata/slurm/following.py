"""Following a run whose cloud may move: its job ends at a time limit or with a node, and goes on elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from shared.core.errors import NotReady, Unreachable
from strata.api.client import Client
from strata.slurm.commands import Slurm
from strata.slurm.connection import client_of, reachable
from strata.slurm.deployment import Address, Deployment
from strata.slurm.options import CORE
from strata.slurm.up import jobs_of

T = TypeVar("T")
_GONE_S = 15.0
_BRIEF_S = 10.0
"""How long a cloud that does not answer is waited for where it was, before it is looked for."""


def following(
    deployment: Deployment,
    slurm: Slurm,
    follow: Callable[[Client], T],
    ready_s: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `follow` returns, which is called anew with a client of the cloud wherever that has moved to.

    Args:
        deployment: whose cloud it is.
        slurm: Slurm's commands.
        follow: raises `Unreachable` once the cloud does not answer any more.
        ready_s: longest wait for a cloud that has moved.
        say: gets what the user should know.
        sleep: waits so many seconds.

    Raises:
        NotReady: the core's job is no longer in the queue, or no cloud answered in time.
    """
    while True:
        address = _answering(deployment, slurm, ready_s, sleep)
        try:
            with client_of(deployment, address, _BRIEF_S) as client:
                return follow(client)
        except Unreachable as error:
            say(f"{error.detail}; its job goes on, maybe on another node")


def _answering(deployment: Deployment, slurm: Slurm, ready_s: float, sleep: Callable[[float], None]) -> Address:
    deadline, gone = time.monotonic() + ready_s, float("inf")
    while (address := reachable(deployment)) is None:
        now = time.monotonic()
        gone = float("inf") if CORE in jobs_of(deployment, slurm) else min(gone, now)
        if now - gone > _GONE_S:
            raise NotReady("the core's job is no longer in the queue, and no cloud answers")
        if now > deadline:
            raise NotReady(f"no cloud has answered for {ready_s:g} s")
        sleep(deployment.options.every_s)
    return address
