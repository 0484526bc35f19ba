"""A fake process for all three tiers, for tests of the launcher: it registers, waits, and fails on request.

`FAKE_DIES`, `FAKE_SILENT` and `FAKE_DEAF` name the process that dies at its start, never registers, or ignores
SIGTERM. It starts quickly because it imports neither torch nor FastAPI.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.waits import HANG_S


class Cloud(BaseHTTPRequestHandler):
    """Answers `/topology` and `/readyz` from the nodes that registered by `POST /here`."""

    edges: dict[str, Any] = {}  # noqa: RUF012 - of the one server of the process
    agents: dict[str, Any] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        if self.path == "/topology":
            agents = list(self.agents.values())
            n_devices = sum(agent["devices"] for agent in agents)
            body = {"n_devices": n_devices, "n_agents": len(agents), "agents": agents}
            self._answer({**body, "edges": list(self.edges.values())})
        else:
            self._answer({"status": "ok", "tier": "cloud", "version": "1"})

    def do_POST(self) -> None:
        here = json.loads(self.rfile.read(int(self.headers["content-length"])))
        common = {"state": "alive", "last_seen_s": 0.0}
        if self.path == "/fleet":
            self._answer({"wanted": {}, "released": []})
            return
        if "devices" in here:
            self.agents[here["name"]] = {"agent": here["name"], "profile": "standard", **here, **common}
        else:
            self.edges[here["name"]] = {"edge": here["name"], "url": "http://x", "n_agents": 0, **common}
        self._answer({})

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def cloud() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cloud, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(os.environ["CLOUD_FD"]))
    threading.Thread(target=server.serve_forever, daemon=True).start()


def register(url: str, name: str, **more: Any) -> None:
    body = json.dumps({"name": name, **more}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(urllib.request.Request(f"{url}/here", data=body), timeout=HANG_S).close()  # noqa: S310 - our own


def main() -> None:
    name = os.environ.get("AGENT_NAME") or os.environ.get("EDGE_NAME") or "cloud"
    prefix = {"e": "EDGE", "a": "AGENT", "c": "CLOUD"}[name[0]]
    state = Path(os.environ[f"{prefix}_STATE_DIR"])
    state.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (state / "env.json").write_text(json.dumps(dict(os.environ) | {"GRANDCHILD": str(child.pid)}))
    print(f"{name} is here")
    if os.environ.get("FAKE_DIES") == name:
        child.kill()
        sys.exit(f"{name}: no such sensor")
    if os.environ.get("FAKE_DEAF") == name:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if prefix == "CLOUD":
        cloud()
    elif os.environ.get("FAKE_SILENT") != name:
        more = {"devices": int(os.environ["AGENT_DEVICES"])} if prefix == "AGENT" else {}
        register(os.environ[f"{prefix}_CLOUD_URL"], name, **more)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
