"""The name of a host, as a node takes it where it is given none."""

from __future__ import annotations

import re
import socket

import pytest

from shared.core.validation import ID
from shared.service.settings import host_id


@pytest.mark.parametrize(
    ("host", "name"),
    [("7b1c20ab", "7b1c20ab"), ("_desk of-me", "desk-of-me"), ("-a\u00e9.b", "a-.b"), ("...", "host"), ("", "host")],
)
def test_a_host_of_any_name_has_one_that_a_node_may_have(host: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert host_id() == name
    assert re.fullmatch(ID, name)
