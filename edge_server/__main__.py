"""`python -m edge_server` runs an edge."""

from edge_server.app import create_app
from edge_server.settings import EdgeSettings
from shared.service.server import serve

if __name__ == "__main__":
    serve("edge", EdgeSettings(), create_app)
