"""`strata prune` and `strata change --pin`."""

from __future__ import annotations

import json

from shared.run_records.removals import Removal
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud
from tests.strata.samples import a_run

OLD = Removal(
    run="r1", name="old", status="completed", ended_at="2026-01-01", n_bytes=5, model_sha256="ab", reason="too old"
)


def test_what_would_be_removed_is_listed_first_and_removed_where_that_is_asked(
    strata: Strata, cloud: FakeCloud, url: str
) -> None:
    assert strata("prune", "--url", url).out == "nothing to remove\n"
    cloud.removals = [OLD]
    assert strata("prune", "--dry-run", "--url", url).out == "r1 (old) would be removed: too old\n"
    (shown,) = json.loads(strata("prune", "--dry-run", "--format", "json", "--url", url).out)
    assert (shown["run"], shown["reason"]) == ("r1", "too old")
    assert cloud.removals == [OLD]
    assert strata("prune", "--url", url).out == "r1 (old) was removed: too old\n"
    assert cloud.removals == []


def test_a_run_is_pinned_and_a_change_of_nothing_is_refused(strata: Strata, cloud: FakeCloud, url: str) -> None:
    cloud.runs = {"r1": a_run(run="r1")}
    assert strata("change", "r1", "--pin", "--url", url).code == 0
    pinned = [cloud.runs["r1"].pinned]
    assert strata("change", "r1", "--no-pin", "--url", url).code == 0
    assert [*pinned, cloud.runs["r1"].pinned] == [True, False]
    refused = strata("change", "r1", "--url", url)
    assert (refused.code, "say what to change" in refused.err) == (2, True)
