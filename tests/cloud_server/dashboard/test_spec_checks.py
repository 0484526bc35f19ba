"""Examples that the form offers, and what it warns of before a run is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_server.dashboard.spec_checks import known_names, missing_data, warnings_of
from shared.federation.spec_parser import parse_run_spec
from shared.spec.experiment import ExperimentSpec
from shared.training.specs import DataSpec


def warned(data_dir: Path | None = None, n_edges: int = 2, n_devices: int = 4, **fields: Any) -> list[str]:
    spec = ExperimentSpec.model_validate(fields)
    return warnings_of(spec, n_edges=n_edges, n_devices=n_devices, data_dir=data_dir)


def test_more_edges_and_devices_than_are_connected_are_warned_of() -> None:
    assert warned(num_edges=2, num_devices=4) == []
    assert warned() == []
    (edges,) = warned(num_edges=3, timeouts={"ready_s": 5})
    assert edges.startswith("num_edges: 2 edges are connected, 3 wanted; the run waits up to 5 s")
    (devices,) = warned(num_devices=5)
    assert devices.startswith("num_devices: 4 devices are connected, 5 wanted; the run starts once")
    assert devices.endswith("the agents there share all 5 devices, more than they have room for.")
    (fewest,) = warned(n_devices=1, min_devices=3, num_devices=5)
    assert fewest.startswith("min_devices: 1 device is connected, 3 needed; the run waits")
    assert [text.partition(":")[0] for text in warned(n_edges=0, n_devices=0)] == ["num_edges", "min_devices"]


@pytest.mark.parametrize(("data", "name"), [({"name": "femnist"}, "femnist.npz"), ({"file": "a.npz"}, "a.npz")])
def test_data_that_is_not_there_is_warned_of(tmp_path: Path, data: dict[str, str], name: str) -> None:
    spec = DataSpec.model_validate(data)
    assert str(tmp_path) in str(missing_data(spec, tmp_path))
    assert "STRATA_DATA_DIR" in str(missing_data(spec, None))
    (tmp_path / name).touch()
    assert missing_data(spec, tmp_path) is None


def test_data_that_is_made_or_downloaded_is_not_warned_of(tmp_path: Path) -> None:
    assert [missing_data(DataSpec(name=name), tmp_path) for name in ("digits", "mnist", "of_a_plugin")] == [None] * 3


def test_every_name_that_is_offered_is_one_of_the_spec() -> None:
    names = known_names()
    assert {"digits", "digit_domains"} <= {*names["data"]}
    assert {"mlp", "char_lstm"} <= {*names["model"]}
    assert {"iid", "by_domain"} <= {*names["partition"]}
    for name in names["model"]:
        parse_run_spec({"model": name})
