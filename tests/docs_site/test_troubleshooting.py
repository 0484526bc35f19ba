"""Each message that the troubleshooting page explains is in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration  # with all files
ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("cloud_server", "edge_server", "device_agent", "shared", "strata")
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `(.+?)` \| \S", PAGE, re.MULTILINE)


def texts(code: str) -> list[str]:
    """Returns the texts of a module, with dots for what f-strings fill in."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


@pytest.fixture(scope="module")
def known() -> list[str]:
    files = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    return [text for path in files for text in texts(path.read_text(encoding="utf-8"))]


def quoted(message: str, known: list[str]) -> list[str]:
    """Returns the parts of a message, between what it leaves out, that no text of the code has."""
    parts = [part for part in re.split(r"\s*…\s*", message) if len(part) > 2]
    return [part for part in parts if not any(part in text for text in known)]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_in_the_code(message: str, known: list[str]) -> None:
    assert quoted(message, known) == []


def test_the_page_has_messages_and_the_check_can_fail(known: list[str]) -> None:
    assert len(MESSAGES) > 25
    assert quoted("zebras … no redis-server was found", known) == ["zebras"]
