"""`python -m device_agent` runs an agent."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # a user's folder may have a `shared`

from shared.runtime.import_path import installed_first

del sys.path[0]
installed_first()

from device_agent.app import create_app
from device_agent.membership import agent_id
from device_agent.settings import AgentSettings
from shared.identity.names import agent_identity
from shared.identity.node_keys import NodeKeys
from shared.service.joining import joined
from shared.service.server import serve


def keys_of(settings: AgentSettings) -> NodeKeys:
    """The agent's keys, with a certificate of the cloud."""
    own = agent_id(settings.state_dir, durable=settings.common.fsync)
    return joined(agent_identity(own), settings, settings.cloud_url)


if __name__ == "__main__":
    serve("agent", AgentSettings, create_app, keys_of)
