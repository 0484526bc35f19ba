"""The data sets that `strata doctor` finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from shared.training.data.sources import DATASETS, DatasetSource
from strata.doctor import Check, data_sets, own_packages, redis_addresses, service_links
from strata.launcher.redis_server import start_redis


def test_doctor_knows_image_folders_and_missing_digit_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> dict[str, Check]:
        return {check.name: check for check in data_sets()}

    monkeypatch.setenv("STRATA_DATA_DIR", str(tmp_path))
    assert found()["data: tiny_imagenet"].found == "not found"
    assert found()["data: tiny_imagenet"].todo.endswith("or the published folder tiny_imagenet")
    folder = tmp_path / "tiny_imagenet"
    folder.mkdir()
    assert found()["data: tiny_imagenet"].state == "warn"
    assert found()["data: tiny_imagenet"].found == f"{folder} cannot be read: wnids.txt is missing or not a file"
    listed = {"train": [(folder / "a.JPEG", 0)] * 3, "test": [(folder / "b.JPEG", 0)]}
    monkeypatch.setitem(DATASETS, "tiny_imagenet", DatasetSource(200, None, lambda _: listed))
    assert found()["data: tiny_imagenet"] == Check("data: tiny_imagenet", "ok", "folder tiny_imagenet, 4 images")
    for name in ("mnist", "usps"):
        (tmp_path / f"{name}.npz").write_bytes(b"x")
    assert found()["data: digit_domains"].state == "warn"
    assert found()["data: digit_domains"].found == "not here: mnist_m, svhn"
    for name in ("svhn", "mnist_m"):
        (tmp_path / f"{name}.npz").write_bytes(b"x")
    assert found()["data: digit_domains"].state == "ok"


def test_another_distribution_with_a_package_of_our_name_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_packages().state == "ok"
    folder = tmp_path / "toolbox-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toolbox\nVersion: 1.0\n")
    (folder / "top_level.txt").write_text("shared\ntoolbox\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = own_packages()
    assert (found.state, found.found) == ("warn", "shared also belongs to toolbox")
    assert "an environment of its own" in found.todo


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "sklearn_docs", "vibration", "synth_digits"])
def test_what_needs_neither_file_nor_network_needs_no_advice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_DATA_DIR", str(tmp_path))
    found = {check.name: check for check in data_sets()}[f"data: {name}"]
    assert (found.state, found.todo) == ("ok", "")


def test_doctor_tells_an_address_of_redis_that_cannot_be_used_without_its_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found(url: str) -> Check:
        monkeypatch.setenv("CLOUD_REDIS_URL", url)
        [check] = redis_addresses()
        return check

    wrong = found("redis://:s3cret/x@127.0.0.1:6379/0")
    assert (wrong.name, wrong.state) == ("CLOUD_REDIS_URL", "fail")
    assert "percent-encoded" in wrong.found
    absent = found(f"unix://{tmp_path}/redis.sock?db=0&password=s3cret")
    assert (absent.state, "does not answer" in absent.found) == ("fail", True)
    assert "s3cret" not in wrong.found + absent.found
    with start_redis(tmp_path / "redis", fsync="no") as server:
        assert found(server.url) == Check("CLOUD_REDIS_URL", "ok", "it answers; maxmemory-policy noeviction")
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert found(server.url).state == "warn"
            client.config_set("maxmemory", "100mb")
        removes = found(server.url)
    assert (removes.state, "removes keys when its memory is full" in removes.found) == ("fail", True)


def test_doctor_finds_service_links(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(service_links()) == []
    monkeypatch.setenv("EDGE_PORT", "tcp://10.0.0.1:8001")
    [check] = service_links()
    assert (check.state, check.found) == ("warn", "service links, which are passed over: EDGE_PORT")
    assert "enableServiceLinks" in check.todo
