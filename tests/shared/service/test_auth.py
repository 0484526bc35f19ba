"""The checks of development mode of Host, and of pages of other sites, at every route of every tier."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cloud_server.settings import CloudSettings
from shared.core.addresses import host_name
from shared.core.errors import BadInput, Forbidden
from shared.service.auth import check_site, is_trusted_host
from tests.federation import Federation
from tests.security.test_tokens import OPEN, TOKENS, routes_of

TRUSTED = [
    "127.0.0.1:8000", "127.0.0.1", "10.1.2.3:80", "8.8.8.8", "[::1]", "[::1]:8000", "[fe80::1%eth0]:80",
    "localhost:8000", "LocalHost", "strata.localhost", "cloud", "cloud:8000", "edge-1:8001", "strata_cloud", "cloud.",
    "box.local:8000", "host.docker.internal:8000", "cloud.strata.svc.cluster.local", "box.home.arpa", "",
]  # fmt: skip
FOREIGN = [
    "evil.example", "evil.example:8000", "evil.example.", "127.0.0.1.evil.example", "127.0.0.1@evil.example",
    "evil.example@127.0.0.1", "evil.example/127.0.0.1", "evil.example#.local", "evil.example:80:80", "notlocal.example",
    "evil.localhost.example", "evil-localhost.com", "evil.xlocal", "[::1].evil.example", "[evil.example]", "[::1",
    "evil.example\\.local", "127.1.evil", "evil .local",
]  # fmt: skip


def test_addresses_and_local_names_are_trusted_and_public_names_are_not() -> None:
    assert [host for host in (*TRUSTED, *FOREIGN) if is_trusted_host(host)] == TRUSTED


def test_an_allowed_name_is_trusted_and_similar_ones_are_not() -> None:
    allowed, names = [host_name("Lab.Example.")], ["lab.example:8000", "LAB.example."]
    hosts = [*names, "evil.lab.example", "lab.example.evil"]
    assert [host for host in hosts if is_trusted_host(host, allowed)] == names


@pytest.mark.parametrize(
    "text", ["*", "*.lab.example", "http://lab.example", "lab.example:8000", "[::1]", "a b", ".", "a..b"]
)
def test_a_setting_that_is_not_a_host_name_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CLOUD_ALLOWED_HOSTS", f"cloud.example,{text}")
    with pytest.raises(BadInput, match="is not a host name"):
        CloudSettings()


async def test_without_tokens_the_cloud_answers_to_trusted_and_allowed_names(tmp_path: Path) -> None:
    allowed = {"allowed_hosts": "lab.example, Box.Example"}
    async with Federation(tmp_path / "f", n_edges=0, agent_devices=(), cloud=allowed) as fed:
        for host in ("cloud:8000", "[::1]:8000", "172.18.0.2:8000", "lab.example:8000", "box.example", "evil.example"):
            for path in ("/runs", "/topology", "/metrics", "/metrics/targets"):
                answer = await fed.client.get(path, headers={"host": host})
                assert answer.status_code == (403 if host == "evil.example" else 200), (path, host)
        beat: dict[str, Any] = {"headers": {"host": "lab.example"}, "json": {}}
        assert (await fed.client.post("/heartbeats", **beat)).status_code == 422, "heard, and no heartbeat"
        for own in OWN:  # programs and the cloud's own pages change things, pages of other sites do not
            answer = await fed.client.post("/runs/none/pause", headers={"host": LAN, **own})
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), f"{own}: let in, and no such run"
        for name, value in OTHERS:
            answer = await fed.client.post("/runs/none/pause", headers={"host": LAN, name: value})
            assert (answer.status_code, answer.json()["field"]) == (403, name), value
    async with Federation(tmp_path / "tokens", n_edges=0, agent_devices=(), common=TOKENS) as fed:
        headers = {"host": "strata.example", "authorization": f"Bearer {TOKENS['api_token']}"}
        assert (await fed.client.get("/runs", headers=headers)).status_code == 200, "with tokens no name matters"


LAN = "10.1.2.3:8000"
OWN = [
    {},
    {"origin": f"http://{LAN}"},
    {"referer": f"http://{LAN}/docs?x=1"},
    {"origin": f"https://{LAN}", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
]
"""Headers of programs, and of the cloud's own pages, at this address."""
PAGES = [
    "http://evil.example", "http://10.1.2.3", "http://10.1.2.3:8001", "http://10.1.2.3:8000.evil.example",
    "http://10.1.2.3:8000@evil.example", "null", "", "http://[::1",
]  # fmt: skip
OTHERS = [
    *(("Origin", page) for page in PAGES),
    *(("Referer", page) for page in ("http://evil.example/10.1.2.3:8000", "http://10.1.2.3:99999/")),
    *(("Sec-Fetch-Site", site) for site in ("cross-site", "same-site")),
]
"""A header of a page of another site, whose request goes to that address.

A browser sends `Sec-Fetch-Site` only to HTTPS and localhost; elsewhere the other two give the page away.
"""


async def test_every_route_of_every_tier_refuses_foreign_names_and_pages_of_other_sites(tmp_path: Path) -> None:
    foreign, tried = {"host": "evil.example:8000"}, Counter[str]()
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        for name, app in fed.apps.items():
            inner = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=inner, base_url=f"http://{LAN}") as http:
                for method, path in sorted(set(routes_of(app.routes))):
                    url = path.replace("{round_no}", "1").replace("{", "").replace("}", "").replace(":path", "")
                    answer = await http.request(method, url, json={}, headers=foreign)
                    if path in OPEN:
                        assert answer.status_code != 403, (name, path)
                        continue
                    found = answer.json()
                    assert (answer.status_code, found["code"], found["field"]) == (403, "forbidden", "Host"), path
                    assert "evil.example" in found["detail"]
                    assert "ALLOWED_HOSTS" in found["detail"]
                    assert answer.headers["content-type"] == "application/problem+json"
                    tried[name.partition("-")[0]] += 1
                    if method not in ("GET", "HEAD"):
                        header, value = OTHERS[tried.total() % len(OTHERS)]
                        answer = await http.request(method, url, json={}, headers={header: value})
                        assert (answer.status_code, answer.json()["field"]) == (403, header), (method, path)
                        assert header in answer.json()["detail"]
    assert tried["cloud"] > 20
    assert tried.keys() == {"cloud", "edge", "agent"}


def test_a_usual_port_behind_a_proxy_may_be_left_out_and_a_link_on_another_site_leads_to_a_page() -> None:
    for host, page in (
        ("lab.example", "https://lab.example"),
        ("lab.example:443", "https://lab.example"),
        ("lab.example", "https://lab.example:443/ui/"),
        ("lab.example:80", "http://LAB.example"),
        ("[::1]:8000", "http://[::1]:8000"),
    ):
        check_site({"host": host, "origin": page}, changes=True)
        with pytest.raises(Forbidden):
            check_site({"host": "127.0.0.1:8000", "origin": page}, changes=True)
    linked = {"host": LAN, "referer": "http://evil.example/"}
    check_site(linked, changes=False)
    with pytest.raises(Forbidden):
        check_site(linked, changes=True)
