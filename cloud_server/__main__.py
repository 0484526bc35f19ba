"""`python -m cloud_server`: run the cloud."""

from cloud_server.app import create_app
from cloud_server.settings import CloudSettings
from shared.server import serve

if __name__ == "__main__":
    serve("cloud", CloudSettings(), create_app)
