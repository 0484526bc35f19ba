"""The folder of a deployment: who reads it, what stays when it is made again, and what a damaged one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import BadInput, NotFound
from strata.slurm.deployment import SECRETS, Address, Deployment, forwarded
from tests.strata.slurm.made import deployment

HERE = Address(url="http://10.0.0.1:8000", redis="redis://10.0.0.1:6379/0", node="n1", job="7")


def test_only_its_owner_reads_its_folder_and_its_secrets(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    assert made.folder.stat().st_mode & 0o777 == 0o700
    assert {made.secret_file(name).stat().st_mode & 0o777 for name in SECRETS} == {0o600}
    assert len({made.secret(name) for name in SECRETS}) == 3


def test_made_again_it_keeps_tag_and_secrets_and_forgets_where_the_core_was(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    made.announce(HERE)
    made.end()
    made.hand_over("edges-1", "leaving")
    before = [made.secret(name) for name in SECRETS]
    again = Deployment.make(made.folder, made.note.replace(tag="other"))
    assert again.note.tag == "abc"
    assert [again.secret(name) for name in SECRETS] == before
    assert again.address() is None
    assert not again.ended
    assert again.all_handing_over() == {}


def test_jobs_find_the_core_until_it_is_withdrawn(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    made.announce(HERE)
    assert Deployment.open(made.folder).address() == HERE
    made.withdraw()
    assert made.address() is None


def test_a_folder_without_a_deployment_or_with_a_damaged_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="`strata slurm up` makes one"):
        Deployment.open(tmp_path)
    (tmp_path / "deployment.json").write_text('{"tag": 3}')
    with pytest.raises(BadInput, match=r"deployment\.json is damaged or of another version"):
        Deployment.open(tmp_path)


def test_settings_are_forwarded_but_nothing_secret_and_nothing_of_one_process() -> None:
    env = {
        "STRATA_DATA_DIR": "/data",
        "AGENT_HEARTBEAT_S": "2",
        "STRATA_API_TOKEN": "x",
        "STRATA_API_TOKEN_FILE": "/x",
        "EDGE_REDIS_URL": "redis://:x@h",
        "CLOUD_PORT": "8000",
        "STRATA_URL": "http://h",
        "EDGE_NAME": "e",
        "HOME": "/root",
    }
    assert forwarded(env) == {"STRATA_DATA_DIR": "/data", "AGENT_HEARTBEAT_S": "2"}
