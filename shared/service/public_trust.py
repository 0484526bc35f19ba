"""Trust in the public certificate authorities, which clients of plain HTTP never need."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import httpx2


class PublicTrust(ssl.SSLContext):
    """What httpx2 verifies with by default, read for the first TLS connection: to read it takes longer than to connect.

    Args:
        trust_env: whether SSL_CERT_FILE and SSL_CERT_DIR may name other authorities.
    """

    def __new__(cls, *, trust_env: bool = False) -> PublicTrust:
        """A context for clients."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, *, trust_env: bool = False) -> None:
        self._trust_env = trust_env
        self._protocols: Iterable[str] = ()

    @cached_property
    def _read(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context(trust_env=self._trust_env)

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Note the protocols that each connection offers."""
        self._protocols = alpn_protocols

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Wrap the two sides of an asynchronous connection."""
        self._read.set_alpn_protocols(self._protocols)
        return self._read.wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Wrap the socket of a synchronous connection."""
        self._read.set_alpn_protocols(self._protocols)
        return self._read.wrap_socket(*args, **kwargs)
