"""What the endpoints of an agent depend on: the agent of the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from device_agent.device_host import DeviceHost
from device_agent.membership import Membership
from device_agent.metrics import AgentMetrics
from device_agent.settings import AgentSettings
from shared.identity.assignments import Assignments
from shared.service.bodies import EncodedAnswer
from shared.service.idempotency import IdempotentRunner


@dataclass
class Agent:
    """The parts of a running agent; `assignments` is None where nodes show no certificates."""

    settings: AgentSettings
    host: DeviceHost
    membership: Membership
    orders: IdempotentRunner[EncodedAnswer]
    metrics: AgentMetrics
    assignments: Assignments | None = None


async def agent_of(request: Request) -> Agent:
    """The agent of the app that received the request; asynchronous, so that no thread is needed for it."""
    found: Agent = request.app.state.agent
    return found


TheAgent = Annotated[Agent, Depends(agent_of)]
