"""The dashboard asks before a run goes on with other data than it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.domains import write_domains
from tests.e2e.browser import Visitor
from tests.fork_server import shared_fork_server
from tests.waits import PACED, until

pytestmark = pytest.mark.e2e
SPEC = {"data": {"name": "usps"}, "num_devices": 2, "num_edges": 1, "num_rounds": 5000, **PACED}


def test_a_run_whose_data_have_changed_goes_on_only_if_the_viewer_says_so(chromium: Any, tmp_path: Path) -> None:
    sets = write_domains(tmp_path / "sets", ("usps",))
    env = {"STRATA_DATA_DIR": str(sets), "STRATA_CACHE_DIR": str(tmp_path / "cache")}
    places: dict[str, Any] = {"runs_dir": tmp_path / "runs", "folder": tmp_path / "state"}
    with Topology(edges=1, devices=2, agents=1, env=env, fork=shared_fork_server(), **places) as topology:
        topology.wait_ready()
        with Client(topology.url) as client:
            run = client.create_run(SPEC).run
            until("a round", lambda: client.run(run).rounds >= 1)
            client.pause(run)
            until("the pause", lambda: client.run(run).status == "paused")
            began = client.run(run).provenance
            topology.end("cloud")
            (sets / "usps.npz").unlink()
            write_domains(sets, ("mnist",))
            (sets / "mnist.npz").rename(sets / "usps.npz")
            topology.start_again("cloud")
            topology.wait_ready()

            visitor = Visitor(chromium, topology.url)
            page = visitor.go(f"/runs/{run}")
            page.get_by_role("button", name="Resume").click()
            page.get_by_text("This run began with other data or packages").wait_for()
            page.get_by_role("button", name="Cancel").click()
            assert (client.run(run).status, client.run(run).changes) == ("paused", ())
            page.get_by_role("button", name="Resume").click()
            page.get_by_role("button", name="Continue with the changes").click()
            until("the change in the record", lambda: bool(client.run(run).changes))
            info = client.run(run)
            assert info.provenance == began is not None
            assert [change.provenance.data_digest == began.data_digest for change in info.changes] == [False]
            assert visitor.complaints == []
            visitor.window.close()
