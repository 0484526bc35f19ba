"""Addresses and names of hosts."""

from __future__ import annotations

import ipaddress

from shared.core.addresses import ANYWHERE, inside, outside


def test_an_address_is_matched_against_networks() -> None:
    networks = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "10.0.0.0/8", "fc00::/7")]
    within, beyond = ["127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3"], ["8.8.8.8", "::1", "testclient", "", None]
    assert [address for address in (*within, *beyond) if inside(address, networks)] == within


def test_nodes_that_may_be_anywhere_are_at_no_address_of_metadata_services_or_groups() -> None:
    within = [
        "127.0.0.1",
        "10.1.2.3",
        "100.64.3.7",
        "169.253.255.255",
        "169.255.0.0",
        "223.255.255.255",
        "::1",
        "fd00::1",
    ]
    within += ["2001:638::1", "1.0.0.0", "::ffff:8.8.8.8"]
    beyond = [
        None,
        "169.254.169.254",
        "169.254.0.0",
        "0.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "ff02::1",
    ]
    beyond += ["::ffff:169.254.169.254", "fe80::1%eth0"]
    assert [address for address in (*within, *beyond) if inside(address, ANYWHERE)] == within
    assert (
        outside("fe80::1", ANYWHERE, "do this")
        == "fe80::1 is link-local, multicast or no address of one machine: do this"
    )
