"""A cloud below a path of a reverse proxy is reached by that URL: `https://lab.example/strata`."""

from __future__ import annotations

from fastapi import FastAPI

import strata as api
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud, served


def test_commands_and_python_reach_a_cloud_below_a_path(cloud: FakeCloud, strata: Strata) -> None:
    proxy = FastAPI()
    proxy.mount("/lab/strata", cloud.app)
    with served(proxy) as address:
        url = f"{address}/lab/strata"
        listed = strata("edges", "--url", url)
        assert (listed.code, "edge-1" in listed.out) == (0, True), listed.err
        assert strata("ls", "--url", f"{url}/").code == 0
        with api.connect(url) as found:
            assert found.topology().n_devices == 5
        assert strata("edges", "--url", address).code != 0  # the path is needed
