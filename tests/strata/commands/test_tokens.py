"""`strata token`, and what other commands say of owners."""

from __future__ import annotations

import json

from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud
from tests.strata.samples import a_run


def test_a_user_is_added_listed_and_removed(strata: Strata, cloud: FakeCloud, url: str) -> None:
    added = strata("token", "add", "alice", "--max-runs", 3, "--url", url)
    assert (added.code, added.out) == (0, "strata_secret\n")
    assert "shown this once" in added.err
    listed = strata("token", "list", "--url", url).out
    assert "alice" in listed
    assert "1 of 3" in listed
    assert "2 kB of any" in listed
    (user,) = json.loads(strata("token", "list", "--format", "json", "--url", url).out)
    assert (user["max_runs"], user["max_bytes"]) == (3, None)
    assert strata("token", "remove", "alice", "--url", url).code == 0
    assert cloud.users == {}
    assert strata("token", "list", "--url", url).out == "no users\n"


def test_runs_are_listed_with_their_owners_where_there_are_any(strata: Strata, cloud: FakeCloud, url: str) -> None:
    cloud.runs = {"r1": a_run(run="r1"), "r2": a_run(run="r2", owner="alice")}
    everything = strata("ls", "--url", url).out
    assert "owner" in everything
    listed = json.loads(strata("ls", "--format", "json", "--url", url).out)
    assert [run["owner"] for run in listed] == ["alice", "admin"]
    of_one = json.loads(strata("ls", "--owner", "admin", "--format", "json", "--url", url).out)
    assert [run["run"] for run in of_one] == ["r1"]
    assert "alice" in strata("show", "r2", "--url", url).out
    cloud.runs = {"r1": a_run(run="r1")}
    assert "owner" not in strata("ls", "--url", url).out


def test_results_are_removed_where_that_is_asked(strata: Strata, cloud: FakeCloud, url: str) -> None:
    cloud.runs = {"r1": a_run(run="r1"), "r2": a_run(run="r2")}
    assert strata("rm", "r1", "--url", url).code == 0
    assert cloud.results_removed == []
    assert strata("rm", "--results", "r1", "latest", "--url", url).code == 0
    assert cloud.results_removed == ["r1", "r2"]
