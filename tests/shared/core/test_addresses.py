"""Addresses and names of hosts."""

from __future__ import annotations

import ipaddress

import pytest

from shared.core.addresses import inside


@pytest.mark.parametrize(
    ("address", "is_inside"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("8.8.8.8", False),
        ("::1", False),
        ("testclient", False),
        ("", False),
        (None, False),
    ],
)
def test_an_address_is_matched_against_networks(address: str | None, is_inside: bool) -> None:
    networks = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "10.0.0.0/8", "fc00::/7")]
    assert inside(address, networks) is is_inside
