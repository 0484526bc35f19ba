"""Files of measured devices: what is read, what is refused, and which device has which row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.federation.spec_parser import parse_spec
from shared.simulation import Always, DeviceFile, Profile, Trace, drawn_profiles, next_on, profiles_of
from shared.simulation.device_file import AVAILABILITY, BOUNDS, MAX_ROWS, availability_cell, devices_in
from shared.simulation.profile_catalogue import PROFILES
from strata.spec_files import read_spec
from tests.shared.simulation.test_profiles import streams

TEXT = """\ufeff# two phones, and what was not measured of them is missing
 compute_sps, "up_bps",down_bps,latency_s,availability\r
200,1e6,2.5E6,.04,always\r

400.5,3e6,5e6,0,10-20.5 30-1e2 / 100
# no more
50,1e6,1e6,0.1,never
"""


def profiles(n: int, text: str, rows: str = "drawn", **devices: Any) -> list[Profile]:
    file = {"path": "d.csv", "csv": text, "rows": rows}
    spec = parse_spec({"devices": {"file": file, **devices}}).devices
    return list(map(profiles_of(spec, n, n, streams), range(n)))


def numbered(n: int) -> str:
    return "compute_sps\n" + "\n".join(str(row + 1) for row in range(n))


def test_cells_become_figures_and_availabilities() -> None:
    found = devices_in(TEXT)
    assert found.columns == ("compute_sps", "up_bps", "down_bps", "latency_s", "availability")
    assert [tuple(row.values())[:4] for row in found.rows] == [
        (200, 1e6, 2.5e6, 0.04),
        (400.5, 3e6, 5e6, 0),
        (50, 1e6, 1e6, 0.1),
    ]
    traces = [Trace(traces=(((10, 20.5), (30, 100)),), period_s=100), Trace(traces=((),))]
    assert [row[AVAILABILITY] for row in found.rows] == [Always(), *traces]
    assert [devices_in(f"availability\n{availability_cell(one)}").rows[0][AVAILABILITY] for one in traces] == traces


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no line with the names of columns"),
        ("# only words\n\n", "there is no line with the names of columns"),
        ("up_bps\n", "there is no row"),
        (
            "up_bps,upbps\n1,2",
            "line 1: no column 'upbps'; did you mean 'up_bps'? (in bits a second); there are compute_sps",
        ),
        ("# a\nup_bps;down_bps\n1;2", "line 2: cells are separated by semicolons; write commas between them"),
        ("up_bps\tdown_bps\n1\t2", "line 1: cells are separated by tabs"),
        (",up_bps\n0,1", "line 1: column 1 has no name; an index (of pandas, say) must be left out"),
        ("up_bps,\n1,", "line 1: column 2 has no name"),
        ('up_bps\n"1,5"', "line 2, column up_bps: '1,5' is not a number; write it with a point"),
        ("up_bps,up_bps\n1,2", "line 1: the column up_bps comes twice"),
        ("up_bps,down_bps\n1,2\n3\n", "line 3 has 1 cell for 2 columns"),
        ("up_bps,down_bps\n1,\n", "line 2, column down_bps is empty; a figure that was not measured"),
        ("up_bps\n\n5 Mbit/s\n", "line 3, column up_bps: '5 Mbit/s' is not a number"),
        ("up_bps\nnan", "'nan' is not a number"),
        ("up_bps\n1_000", "'1_000' is not a number"),
        ("up_bps\n-1", "line 2, column up_bps: '-1' is not from 1e-06 to 1e+15"),
        ("up_bps\n1e999", "'1e999' is not from 1e-06 to 1e+15"),
        ("drop_rate\n1.5", "column drop_rate: '1.5' is not from 0 to 1"),
        ("availability\nsometimes", "'sometimes' is neither always, never, nor intervals such as 0-3600"),
        ("availability\n0-5 /", "neither always, never, nor intervals"),
        ("availability\n5-1", "line 2, column availability: [5, 1] is not an interval"),
        ("availability\n0-5 4-9", "begins before the interval before it ends"),
        ("availability\n0-5 7-9 / 8", "lies beyond period_s 8"),
        ("availability\n" + " ".join(f"{2 * n}-{2 * n + 1}" for n in range(10_001)), "must have 10000 or fewer items"),
        ("availability\n" + "\n".join(["0-1 2-3"] * 5_001), "line 5002: the rows have more than 10,000 on-intervals"),
        (numbered(MAX_ROWS + 1), "there are more than 10,000 rows"),
        ("up_bps\n" + "1" * 100_000 + "x", "is not a number"),  # in time that grows with the text, not its square
        ("availability\n0-" + "1" * 50_000 + "-" + "1" * 50_000 + "x", "neither always, never, nor intervals"),
        ("availability\n" + "1" * 50_000 + "-" + "1" * 50_000 + "x", "neither always, never, nor intervals"),
        ("availability\n0-1e400", "is not an interval"),
        ("up_bps\n\u0663", "is not a number"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_column(text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_spec({"devices": {"file": {"path": "d.csv", "csv": text}}})
    assert caught.value.field == "devices.file"
    assert words in caught.value.detail


@pytest.mark.parametrize("name", BOUNDS)
def test_a_cell_may_be_what_a_profile_may_be(name: str) -> None:
    """The least and the largest number of a column are values of the field, in a spec and in a profile."""
    for value in BOUNDS[name]:
        assert getattr(profiles(1, f"{name}\n{value!r}")[0], name) == value
        parse_spec({"devices": {"profile": {name: value}}})


# ---- which device has which row


def test_rows_are_drawn_in_seeded_order_each_once_before_any_comes_again() -> None:
    found = [profile.compute_sps for profile in profiles(25, numbered(10))]
    assert found[:10] != sorted(found[:10])
    assert [Counter(found[:10]), Counter(found[10:20])] == [Counter(range(1, 11))] * 2
    assert max(Counter(found).values()) == 3
    order = np.random.default_rng(stream_seed("0|all|device rows 0")).permutation(10) + 1
    assert found[:10] == order.tolist()
    assert found[:7] == [profile.compute_sps for profile in profiles(7, numbered(10))], "more devices change no other"


def test_devices_of_a_sampled_partition_have_the_same_rows() -> None:
    spec = parse_spec({"devices": {"file": {"path": "d.csv", "csv": numbered(10)}}}).devices
    assert list(map(drawn_profiles(spec, streams), range(25))) == profiles(25, numbered(10))


def test_rows_in_order_belong_to_the_devices_of_their_numbers_which_must_not_be_more() -> None:
    assert [profile.compute_sps for profile in profiles(9, numbered(10), "in_order")] == [*range(1, 10)]
    file = {"path": "d.csv", "csv": numbered(3), "rows": "in_order"}
    words = "devices.file: d.csv has 3 rows for 4 devices; rows: drawn gives a row to several"
    with pytest.raises(BadInput, match=words):
        parse_spec({"num_devices": 4, "devices": {"file": file}})
    with pytest.raises(BadInput, match=words) as caught:
        parse_spec({"devices": {"file": file}}).resolved(n_devices=4, n_edges=1)
    assert caught.value.field == "devices.file"


def test_a_row_replaces_figures_of_the_profile_and_stragglers_are_slower_than_their_rows() -> None:
    (found,) = profiles(1, "up_bps,latency_s\n5e5,0.25", profile="raspberry_pi")
    assert found == PROFILES["raspberry_pi"].replace(name="measured", up_bps=5e5, latency_s=0.25)
    (found,) = profiles(1, "up_bps\n5e5", profile={"name": "raspberry_pi", "label": "mine", "jitter_s": 1})
    assert found == PROFILES["raspberry_pi"].replace(name="mine", up_bps=5e5, jitter_s=1)
    (slow,) = profiles(
        1, "up_bps,compute_sps\n5e5,80", straggler_ratio=1, straggler_slowdown=4, straggler_slows="visit"
    )
    assert (slow.up_bps, slow.compute_sps, slow.down_bps) == (1.25e5, 20, 2.5e7)


def test_rows_that_equal_the_standard_profile_give_it() -> None:
    text = "compute_sps,up_bps,down_bps,latency_s,availability\n" + "500,2e7,1e8,0.02,always\n" * 3
    assert [found.replace(name="standard") for found in profiles(4, text)] == [Profile()] * 4


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"profile": "agent"}, "no `profiles` and no `profile: agent` beside it"),
        ({"profiles": [{"profile": "jetson", "share": 1}]}, "no `profiles` and no `profile: agent` beside it"),
        ({"profile": {"up_bps": 1e6}}, "profile.up_bps: d.csv has a column up_bps, which gives this figure"),
    ],
)
def test_a_figure_that_a_file_gives_is_given_by_nothing_else(devices: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        profiles(1, "up_bps\n1", **devices)


def test_a_device_is_on_in_the_intervals_of_its_row() -> None:
    (found,) = profiles(1, "availability\n10-20 40-50 / 100")
    times = (0, 10, 20, 45, 60, 150, 999)
    assert [next_on(found.availability, 7, at, streams("seat 7")) for at in times] == [10, 10, 40, 45, 110, 210, 1010]
    (never,) = profiles(1, "availability\nnever")
    assert next_on(never.availability, 0, 5.0, streams("seat 0")) is None


def test_agents_profiles_do_not_count_where_a_file_does() -> None:
    spec = parse_spec({"devices": {"file": {"path": "d.csv", "csv": numbered(1)}}})
    assert not spec.resolved(n_devices=2, n_edges=1, profiles=["jetson"]).devices.by_agent


# ---- reading


def test_a_spec_names_the_file_and_holds_its_text(tmp_path: Path) -> None:
    (tmp_path / "devices.csv").write_bytes(TEXT.encode())
    (tmp_path / "spec.yaml").write_text("devices: {file: devices.csv, straggler_ratio: 0.1}\n", encoding="utf-8")
    found = read_spec(tmp_path / "spec.yaml")
    assert found.devices.file == DeviceFile(path="devices.csv", csv=TEXT)
    again = read_spec(found)
    assert (again.devices, again.digest()) == (found.devices, found.digest())
    (tmp_path / "spec.yaml").write_text("devices: {file: {path: devices.csv, rows: in_order}}\n", encoding="utf-8")
    assert read_spec(tmp_path / "spec.yaml", ["devices.straggler_ratio=0.5"]).devices.file == DeviceFile(
        path="devices.csv", rows="in_order", csv=TEXT
    )


@pytest.mark.parametrize("override", ["devices.file=mine.csv", "devices.file.path=mine.csv"])
@pytest.mark.parametrize("own", ["{}", "{file: devices.csv}", "{file: {path: devices.csv, csv: up_bps\n\n1}}"])
def test_an_override_names_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, override: str
) -> None:
    (folder := tmp_path / "specs").mkdir()
    (folder / "devices.csv").write_text("up_bps\n1\n", encoding="utf-8")
    (folder / "spec.yaml").write_text(f"devices: {own}\n", encoding="utf-8")
    (tmp_path / "mine.csv").write_text(TEXT, encoding="utf-8", newline="")
    monkeypatch.chdir(tmp_path)
    assert read_spec(folder / "spec.yaml", [override]).devices.file == DeviceFile(path="mine.csv", csv=TEXT)


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("devices: {file: devices.csv}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"devices\.csv: No such file"):
        read_spec(tmp_path / "spec.yaml")
    (tmp_path / "devices.csv").write_text("up_bps\n" + "1\n" * 150_000, encoding="utf-8")
    with pytest.raises(BadInput, match=r"has 300,007 characters; it travels with the spec, which holds 262,144"):
        read_spec(tmp_path / "spec.yaml")
    with pytest.raises(BadInput, match="only `strata run SPEC` reads a file of devices"):
        parse_spec({"devices": {"file": "devices.csv"}})


def test_a_spec_without_a_file_is_written_as_before() -> None:
    assert '"file"' not in parse_spec({"devices": {"straggler_ratio": 0.1}}).model_dump_json()
