"""Kills and restarts a real redis-server, which no product code does."""

from __future__ import annotations

from strata.launcher.redis_server import RedisServer


def kill(server: RedisServer) -> None:
    """End the server by SIGKILL; after `restart` it has every write that it acknowledged."""
    server._process.kill()
    server._process.wait()


def restart(server: RedisServer) -> None:
    """Stop the server if it runs, and start it again on its data and at its address."""
    server.stop()
    server._process = server._start()
