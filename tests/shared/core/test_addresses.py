"""Addresses and names of hosts."""

from __future__ import annotations

import ipaddress

from shared.core.addresses import inside


def test_an_address_is_matched_against_networks() -> None:
    networks = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "10.0.0.0/8", "fc00::/7")]
    within, beyond = ["127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3"], ["8.8.8.8", "::1", "testclient", "", None]
    assert [address for address in (*within, *beyond) if inside(address, networks)] == within
