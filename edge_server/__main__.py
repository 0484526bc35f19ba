"""`python -m edge_server` runs an edge."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # a user's folder may have a `shared`

from shared.runtime.import_path import installed_first

del sys.path[0]
installed_first()

from edge_server.app import create_app
from edge_server.settings import EdgeSettings
from shared.identity.names import edge_identity
from shared.identity.node_keys import NodeKeys
from shared.service.joining import joined
from shared.service.server import serve


def keys_of(settings: EdgeSettings) -> NodeKeys:
    """The edge's keys, with a certificate of the cloud."""
    return joined(edge_identity(settings.edge), settings, settings.cloud_url)


if __name__ == "__main__":
    serve("edge", EdgeSettings, create_app, keys_of)
