"""No tier loads Matplotlib: pictures are drawn by commands on request."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fastapi import FastAPI

from cloud_server.app import create_app
from cloud_server.dashboard.mount import attach
from cloud_server.settings import CloudSettings
from tests.federation import Federation, small_spec
from tests.forked_strata import run

PACKAGES = ("cloud_server", "edge_server", "device_agent", "shared.algorithms", "shared.training")


@pytest.mark.slow
def test_tiers_that_train_and_show_a_run_load_no_matplotlib_and_drawing_that_run_does(tmp_path: Path) -> None:
    """In a separate process, since tests of pictures load Matplotlib into this one."""
    done = run(str(tmp_path), module=__name__)
    assert done.returncode == 0, done.stderr
    observed = json.loads(done.stdout.splitlines()[-1])
    assert observed["status"] == "completed"
    assert "plots" not in observed["in_folder"]
    assert observed["pages"] == [200] * 4
    assert observed["loaded_by_tiers"] == []
    assert observed["loaded_by_drawing"] == ["matplotlib"]


def observe(folder: str) -> None:
    """Import and run all tiers, then draw the pictures of the run; print which modules each step loaded."""
    from shared.training.data.synthetic_digits import picture
    from shared.training.torchvision_compat import torchvision

    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    torchvision()
    picture(8, np.random.default_rng(0))
    with patch("tests.federation.create_cloud", _with_dashboard):
        observed = asyncio.run(_train_and_show(Path(folder)))
    observed["loaded_by_tiers"] = _loaded()

    from shared.results.matplotlib_figures import SCREEN
    from shared.results.report.figures import write_pictures

    run = Path(observed["run"])
    observed["in_folder"] = sorted(path.name for path in run.iterdir())
    write_pictures(run, run / "plots", "png", SCREEN)
    observed["loaded_by_drawing"] = _loaded()
    print(json.dumps(observed))


async def _train_and_show(folder: Path) -> dict[str, Any]:
    """Completes a run with three tiers and requests the dashboard's pages of the run."""
    async with Federation(folder / "f") as fed:
        info = await fed.run(small_spec())
        paths = ("/ui/", "/ui/runs", f"/ui/runs/{info.run}", f"/ui/compare?run={info.run}")
        pages = [(await fed.client.get(path)).status_code for path in paths]
        return {"status": info.status, "run": str(folder / "f" / "runs" / info.run), "pages": pages}


def _with_dashboard(settings: CloudSettings, *others: Any) -> FastAPI:
    app = create_app(settings, *others)
    attach(app, settings)
    return app


def _loaded() -> list[str]:
    return sorted({"matplotlib"} & sys.modules.keys())


if __name__ == "__main__":
    observe(sys.argv[1])
