"""Settings of tiers: the name of a host where a node is given none, and secrets in files."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from cloud_server.settings import CloudSettings
from edge_server.settings import EdgeSettings
from shared.core.errors import BadInput
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


@pytest.mark.parametrize(("settings", "prefix"), [(CloudSettings, "CLOUD"), (EdgeSettings, "EDGE")])
def test_the_password_of_redis_may_be_in_a_file(
    settings: type[CloudSettings] | type[EdgeSettings], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("a/b@c\n")
    monkeypatch.setenv(f"{prefix}_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv(f"{prefix}_REDIS_URL", "redis://10.0.0.1:7000/2")
    assert settings().redis_url == "redis://:a%2Fb%40c@10.0.0.1:7000/2"
    monkeypatch.setenv(f"{prefix}_REDIS_URL", "redis://:other@10.0.0.1:7000/2")
    with pytest.raises(
        BadInput, match="names a user or a password, and a file with the password is given too"
    ) as error:
        settings()
    assert "other" not in str(error.value)
    monkeypatch.setenv(f"{prefix}_REDIS_PASSWORD_FILE", str(tmp_path / "absent"))
    with pytest.raises(BadInput, match=f"{prefix}_REDIS_PASSWORD_FILE: .* cannot be read"):
        settings()
