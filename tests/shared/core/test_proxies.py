"""The proxy that the environment names for an address."""

from __future__ import annotations

import pytest

from shared.core import proxies
from shared.core.errors import BadInput, Unreachable
from shared.core.proxies import Proxy, proxy_of
from strata.api.topology_client import TopologyClient

FAR = "http://lab-server:8000"
LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
ALL = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(proxies, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("variable", "value", "url", "found"),
    [
        ("http_proxy", "proxy:3128", FAR, "http://proxy:3128"),
        ("HTTP_PROXY", "http://me:secret@proxy:3128", FAR, "http://me:secret@proxy:3128"),
        ("HTTP_PROXY", "[fd00::1]:3128", FAR, "http://[fd00::1]:3128"),
        ("HTTPS_PROXY", "http://proxy:3128", FAR, None),
        ("HTTPS_PROXY", "http://proxy:3128", "https://lab-server", "http://proxy:3128"),
        ("ALL_PROXY", "http://proxy:3128", FAR, "http://proxy:3128"),
        *(("ALL_PROXY", "socks://127.0.0.1:7890/", f"http://{host}:8000", None) for host in LOOPBACK),
        ("HTTP_PROXY", "", FAR, None),
    ],
)
def test_a_proxy_is_read_as_other_programs_read_it(
    variable: str, value: str, url: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert proxy_of(url) == (Proxy(found, variable) if found else None)


@pytest.mark.parametrize(
    ("no_proxy", "direct", "by_proxy"),
    [
        ("localhost,127.0.0.1,[::1]", [], [FAR]),
        ("localhost,fd00::/8", ["http://[fd00::7]:8000"], [FAR, "http://[fe80::1]:8000"]),
        ("[fd00::7]", ["http://[fd00::7]:8000"], ["http://[fd00::8]:8000"]),
        ("10.0.0.0/8, .lab", ["http://10.2.3.4:8000", "http://a.lab:8000"], ["http://11.2.3.4:8000", FAR]),
        ("lab-server", [FAR], ["http://other"]),
        ("*", [FAR, "http://10.0.0.1"], []),
    ],
)
def test_hosts_and_networks_are_left_out(
    no_proxy: str, direct: list[str], by_proxy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert [url for url in (*direct, *by_proxy) if proxy_of(url) is None] == direct
    for url in (*direct, *by_proxy):
        TopologyClient(url).close()


@pytest.mark.parametrize(
    "value", ["socks://127.0.0.1:7890/", "socks5://127.0.0.1:1080", "ftp://proxy", "http://", "::1"]
)
def test_a_proxy_that_cannot_be_used_is_refused_by_its_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(BadInput, match=r"^ALL_PROXY .*or add the host to NO_PROXY$") as refused:
        TopologyClient(FAR)
    assert refused.value.field == "ALL_PROXY"
    if value.startswith("socks"):
        monkeypatch.setattr(proxies, "find_spec", lambda name: name)
        assert proxy_of(FAR) == Proxy(value.replace("socks:", "socks5:"), "ALL_PROXY"), "it works with its package"


def test_a_proxy_that_does_not_answer_is_blamed_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "127.0.0.1:9")
    with TopologyClient(FAR) as client, pytest.raises(Unreachable, match=r"the proxy that http_proxy names$"):
        client.topology()


@pytest.mark.parametrize("url", ["localhost:8000", "::1", "http://::1:8000", "redis://host", "http://host:port", ""])
def test_what_is_no_address_of_a_cloud_is_refused_with_its_form(url: str) -> None:
    with pytest.raises(Unreachable, match=r"write it as http://HOST:PORT"):
        TopologyClient(url)
