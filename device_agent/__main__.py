"""`python -m device_agent`: run an agent."""

from device_agent.app import create_app
from device_agent.settings import AgentSettings
from shared.service.server import serve

if __name__ == "__main__":
    serve("agent", AgentSettings(), create_app)
