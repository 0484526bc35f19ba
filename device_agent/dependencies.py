"""What the routes of an agent get: the agent behind the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from device_agent.device_host import DeviceHost
from device_agent.membership import Membership
from device_agent.metrics import AgentMetrics
from device_agent.settings import AgentSettings
from shared.service.bodies import EncodedAnswer
from shared.service.idempotency import IdempotentRunner


@dataclass
class Agent:
    """What an agent owns while it runs."""

    settings: AgentSettings
    host: DeviceHost
    membership: Membership
    orders: IdempotentRunner[EncodedAnswer]
    metrics: AgentMetrics


def agent_of(request: Request) -> Agent:
    """The agent behind the app."""
    found: Agent = request.app.state.agent
    return found


TheAgent = Annotated[Agent, Depends(agent_of)]
