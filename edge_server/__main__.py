"""`python -m edge_server` runs an edge."""

from edge_server.app import create_app
from edge_server.settings import EdgeSettings
from shared.identity.names import edge_identity
from shared.identity.node_keys import NodeKeys
from shared.service.joining import joined
from shared.service.server import serve


def keys_of(settings: EdgeSettings) -> NodeKeys:
    """The edge's keys, with a certificate of the cloud."""
    return joined(edge_identity(settings.name), settings, settings.cloud_url)


if __name__ == "__main__":
    serve("edge", EdgeSettings, create_app, keys_of)
