"""What browsers are told of every answer: nothing of other sites is loaded, and no other page may frame one of ours."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest
from fastapi.responses import HTMLResponse

from shared.service.app import make_app
from shared.service.response_headers import DATA_POLICY, PAGE_POLICY, ResponseHeaders
from tests.federation import Federation


def directives(policy: str) -> dict[str, list[str]]:
    """Returns the sources of a policy by directive."""
    parts = [part.split() for part in policy.split(";")]
    return {name: sources for name, *sources in parts}


@pytest.mark.parametrize("policy", [DATA_POLICY, PAGE_POLICY], ids=["data", "pages"])
def test_a_policy_names_no_other_site_and_allows_no_frame(policy: str) -> None:
    found = directives(policy)
    assert {source for sources in found.values() for source in sources} <= {
        "'none'", "'self'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:",
    }  # fmt: skip
    assert found["default-src"] == found["frame-ancestors"] == found["base-uri"] == ["'none'"]
    assert "script-src" not in directives(DATA_POLICY), "default-src 'none' forbids scripts"


async def test_every_kind_of_answer_of_the_cloud_has_the_headers(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=0, agent_devices=()) as fed:
        for path, status in (("/healthz", 200), ("/runs", 200), ("/runs/none", 404), ("/openapi.json", 200)):
            answer = await fed.client.get(path)
            assert (answer.status_code, answer.headers["content-security-policy"]) == (status, DATA_POLICY)
            assert answer.headers["x-content-type-options"] == "nosniff"
        too_large = await fed.client.post("/runs", content=b"x" * (2**20 + 1))
        assert (too_large.status_code, too_large.headers["content-security-policy"]) == (413, DATA_POLICY)


async def test_paths_of_pages_have_their_own_policy_and_a_stricter_one_is_kept() -> None:
    app = make_app("probe")
    app.add_middleware(ResponseHeaders, pages={"/ui": PAGE_POLICY})

    @app.get("/ui/page")
    @app.get("/uix")
    async def page() -> HTMLResponse:
        return HTMLResponse("x")

    @app.get("/ui/strict")
    async def strict() -> HTMLResponse:
        return HTMLResponse("x", headers={"content-security-policy": "default-src 'none'"})

    @app.get("/fails")
    async def fails() -> None:
        raise RuntimeError

    inner = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=inner, base_url="http://cloud") as http:
        policies = {path: (await http.get(path)).headers.get_list("content-security-policy") for path in (
            "/ui/page", "/uix", "/ui/strict", "/fails",
        )}  # fmt: skip
    assert policies == {
        "/ui/page": [PAGE_POLICY],
        "/uix": [DATA_POLICY],
        "/ui/strict": ["default-src 'none'"],
        "/fails": [DATA_POLICY],
    }


async def test_no_tier_serves_a_page_with_scripts_of_another_site() -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(make_app("probe")), base_url="http://tier") as http:
        for path in ("/docs", "/redoc"):
            assert (await http.get(path)).status_code == 404


def test_the_dashboard_shows_texts_by_elements_that_take_plain_text() -> None:
    """`ui.code`, `ui.markdown` and `ui.html` read markup in what they show: a fence in a name ends a block of code."""
    folder = Path(__file__).parents[2] / "cloud_server" / "dashboard"
    pattern = r"ui\.(code|markdown|html|restructured_text|mermaid|chat_message)\(|v-html|html=True"
    lines = [line.strip() for path in folder.rglob("*.py") for line in path.read_text("utf-8").splitlines()]
    (only,) = (line for line in lines if re.search(pattern, line))
    assert only.startswith('ui.html(\'<form method="post" action="/ui/logout">')
    assert "{" not in only
