"""What the routes of an agent get: the agent behind the app."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from device_agent.device_host import Host
from device_agent.membership import Membership
from device_agent.metrics import AgentMetrics
from device_agent.settings import AgentSettings
from shared.service.bodies import Made
from shared.service.idempotency import Once


def agent_of(request: Request) -> Agent:
    """The agent behind the app."""
    found: Agent = request.app.state.agent
    return found


@dataclass
class Agent:
    """What an agent owns while it runs."""

    settings: AgentSettings
    host: Host
    membership: Membership
    once: Once[Made]
    metrics: AgentMetrics
