"""Measurements of other projects become files of devices; pickled files are read as data."""

from __future__ import annotations

import base64
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.errors import BadInput
from shared.simulation import REFERENCE_FLOPS, Trace
from shared.simulation.device_file import AVAILABILITY, devices_in
from strata.measured import fedscale, mobiperf
from strata.measured.pickled import data_in
from strata.spec_files import read_spec
from tests.strata.conftest import Strata

CAPACITY = {
    1: {"computation": 100.0, "communication": 5000.0},
    2: {"computation": 20.5, "communication": 800.25},
}
PLAIN: dict[Any, Any] = {
    "1": {"computation": 7, "communication": 2**40},
    (2, "x"): [1.5, True, None, -3, 10**30, "\u00e9", [], {}],
}
TRACE = {0: {"duration": 5, "inactive": [20, 60], "finish_time": 100, "active": [10, 50], "model": "P10"}}
PICKLED: dict[str, bytes] = {
    name: base64.b85decode(text)
    for name, text in {
        "numpy3": (
            "fCGJT04PfVeQ^OOSPK9E0Ap`$aCLNHbZKvHaROs*b!~8YE@N+UWiD-XY;<X1a&lpL3Ugy&Y+-T=aRXy+b!~8Y3S@M7aAgW{1Xuz9"
            "003q<aRrHphj9i{aR(?%16Tn7002C32u@B;O8@`=|4RS=|Nlz>ba4q{LkIu>00000SwL|LhH(p0aST`u0001EZ*6ULZfRp-bZKvH"
            "aSdn#Xa_?G000000En|daSn!Y4^nXubxQ($aS<qJ0%!wh2SW$|00000fHXjH5{7XTQgIY$4QK;s2SW$|000000*OFz6^3yZQgIh`"
            "buI"
        ),
        "numpy4": (
            "fCQD*000000001elqgF9eUvDS3uA9>aCLNHbZKvHl#CW`b!~8YE?;ABa%C=Ub!>ELVRCX|d6bL>b7Ns_VRDp{l#B&#b!~8Yl#B&r"
            "ba`-Pl#`T<0%kariHL`kQj{o51B?MYluk}gO8@`=|4RS=|Nlz>bd+L42mk;800014K$M1*Qk0AhV{dJ3b#7^6VRUJ4Zj@*RXbVFK"
            "000000En|dl!la2lyyr2eUvC@0%!$j3quG100000fHXjqhLlp2Xc1@yXbVFK0000000N0Xl!la2ly!A3"
        ),
        "int32": (
            "fCGJT080UVaRDe;3jhEBV{dJ6b#!5LX>V?E0%LA<ZE$%mUt@1_WiD-XY;<X1a&lpL3Ugy&Y+-T=aRXy+b!~8Y3S@M7aAgW{1Xuz9"
            "003z;aRrHphj9i{aR(?%16Tn7002C32u@B;O8@`=|4RS=|Nlz>ba4q{Lj(r^0040chH(p0aST`u0001EZ*6ULZfRp-bZKvHaSdn#"
            "XaraS0001HG;t1zh=*|xQgIL{O9N;KPEJlr|NsC0O8@`=|4RULaS>ue1ONaaKyea=aT8K;6m@eh"
        ),
        "plain0": (
            "C}eOj3RW=+a4`xfWN<PHR%35%aCLNHbZKvH3UD(DNjC~}R%35%ZFO#GV_|e@Z*B^3Gzv^HFgZCjF)=nWH#avnObT;zC`mF3R(J|<"
            "H41caHVP<ga5oA@F)lR<VM#DC3SmxRNi8!9VN5YFFfcGMFfcGMFfcGMFfcGMFfcGMFfcGMFfcGMFiZ+zR_O|GI0|7XY;ZXWVJKv9"
            "F)#{Yb1n"
        ),
        "plain1": (
            "eQ^LNSOEY405Nd^eQ^RPSPK9E0Ap`$aCLNHbZKvHaRW;SSPcLG0Ap`$ZFO#GV_|e@Z*Fk}OffJyIW;jcHZnIiH#STPbtp>$SOEY4"
            "0C;f)ba4h<aR(?zKllIu00000NiZ=APD=g%|Nl%eFfcGMFfcGMFfcGMFfcGMFfcGMFfcGMFfcGMFfdFCSONe50K=(q2wiareQ^q9"
            "buI"
        ),
        "plain2": (
            "fC7DS04P`i0000naRGgC0w`Du0001EZ*6dObYXO9Z*Fk|O9xmD0001EZ*6ULZfRp-bZKvHaRiD60000000DJN0$2e6004M#1%`13"
            "U2z8}M?d%g000000EkXX{r~^}iVXk&06^;PbVkseET0Tm0ssI2!>MryU2zG0aSCO1E&"
        ),
        "plain4": (
            "fCQCk000000001elqie=F_e9jD2xkZZ*6dObYXO9Z*G)J2aFA4Z*6ULZfRp-bZKvHl!^ub000000d-3Pi~)F*hLl~DC`Ui|00000"
            "004+iO8x);|B4L&002Ph?Q}-aoGhOVi~_@{lwFj4lx1};"
        ),
        "trace5": (
            "fCZIV000000001eluH18lqie{WOZ_3bZKvHluHGS2x)F%V{~bDWt3f%C`%MeJY|dvW@&C|b7)_5X>DbcOJs}&VPkY@c4d@ZlqgFI"
            "OEP7Q1#NF+Wo(p;15hzAly!41"
        ),
        "evil": ("fCGJT080U5aBp*IcnWiQb97~G3UL8g5C8xGbZ>QIXdo|iZE!D8S58GlaRP;L15$AWb1n"),
    }.items()
}
"""Files that Python's pickler wrote. `numpy3` has NumPy's scalars in protocol 3 under their old name: half a million
such entries have the 39,369,071 bytes of FedScale's file. `plain` is in protocols 0 to 4; `evil` calls `os.system`."""

LISTS = b"]q\x00" + b"](h\x00h\x00eq\x00" * 60
"""A list of a list twice, 60 times over: few bytes, and 2^60 lists once it is written out."""
TUPLES = b")q\x00" + b"h\x00h\x00\x86q\x00" * 60
"""Likewise of tuples, which can be hashed."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("numpy3", CAPACITY),
        ("numpy4", CAPACITY),
        ("int32", {1: {"computation": 7, "communication": 2.5}}),
        *((f"plain{protocol}", PLAIN) for protocol in (0, 1, 2, 4)),
        ("trace5", TRACE),
    ],
)
def test_data_are_read_from_each_protocol(name: str, value: Any) -> None:
    found = data_in(PICKLED[name])
    assert found == value
    assert [type(key) for key in found] == [type(key) for key in value]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PICKLED["evil"], r"it names '(posix|nt)\.system', which is not data"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"it names 'builtins\.eval'"),
        (b"(ibuiltins\neval\n.", "it has the instruction INST"),
        (b"\x80\x02cnumpy\ndtype\nU\x02O8\x85R.", "of the type 'O8', which is no number"),
        (b"K\x01}b.", "it has the instruction BUILD"),
        (b"}K\x01K\x02a.", "items for what is neither"),
        (b"K\x01K\x02.", "not a pickle"),
        (b"h\x07.", "not a pickle"),
        (b"s.", "not a pickle"),
        (b"t.", "not a pickle"),
        (b"not a pickle", "not a pickle"),
        (b"", "not a pickle"),
        # what would be exponentially large, or take a time that is
        (b"\x80\x04" + LISTS + LISTS + b"\x93.", "it names something by what is no text"),
        (LISTS + b"cnumpy\ndtype\nh\x00\x85R.", "of the type 'list', which is no number"),
        (TUPLES + b"}h\x00K\x01s.", "a key is neither a number nor a text"),
        (b"}" + b")" + b"\x85" * 10**5 + b"K\x01s.", "a key is neither a number nor a text"),
        (b"}" + b"(" + b"K\x01" * 11 + b"tK\x01s.", "a key is neither a number nor a text"),
        (b"}\x8a\x09" + b"\x01" * 9 + b"K\x01s.", "a key is neither a number nor a text"),
        (b"(" + b"N" * 10**5 + b"(t" * 10**5 + b".", "not a pickle"),
    ],
)
def test_what_is_not_data_is_refused_and_nothing_is_called(content: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        data_in(content)


@given(st.sampled_from(sorted(PICKLED)), st.integers(0, 10**6), st.binary(max_size=4))
def test_a_damaged_file_is_data_or_refused(name: str, at: int, other: bytes) -> None:
    content = bytearray(PICKLED[name])
    place = at % len(content)
    content[place : place + len(other)] = other
    with suppress(BadInput):
        assert isinstance(data_in(bytes(content)), bool | int | float | str | bytes | tuple | list | dict | None)


# ---- FedScale


def test_fedscales_devices_train_three_times_as_long_as_they_infer(tmp_path: Path) -> None:
    path = tmp_path / "client_device_capacity"
    path.write_bytes(PICKLED["numpy3"])
    found = fedscale.converted(path, None, n_rows=10, seed=0)
    assert not [line for line in found.remarks if line.startswith("left out")]
    rows = devices_in(found.text("a test")).rows
    assert [row["compute_sps"] for row in rows] == [pytest.approx(1000 / (3 * ms), rel=1e-5) for ms in (100, 20.5)]
    assert [(row["up_bps"], row["down_bps"]) for row in rows] == [(5e6, 5e6), (800_250, 800_250)]
    found = fedscale.converted(path, None, n_rows=10, seed=0, forward_flops=6e8)
    assert found.rows[0]["compute_sps"] * REFERENCE_FLOPS == pytest.approx(3 * 6e8 / (3 * 0.1))
    assert "inference on a sample of the measured model has 6e+08 operations" in found.remarks[1]


def test_a_trace_is_on_from_active_to_inactive_and_repeats(tmp_path: Path) -> None:
    """The client with the number n has the n-th trace, modulo their number; faults of traces are counted."""
    capacity: dict[str, Any] = {str(n): {"computation": 10, "communication": 100} for n in range(4)}
    capacity |= {"4": {"computation": 10}, "5": {"computation": -1, "communication": 100}}
    odd = {"active": [5, 30, 32, 90], "inactive": [5, 33, 40], "finish_time": 95, "duration": 0, "model": ""}
    (tmp_path / "capacity").write_text(json.dumps(capacity), encoding="utf-8")
    (tmp_path / "traces").write_text(json.dumps({"a": TRACE[0], "b": odd}), encoding="utf-8")
    found = fedscale.converted(tmp_path / "capacity", tmp_path / "traces", n_rows=4, seed=0)
    rows = devices_in(found.text("a test")).rows
    whole = Trace(traces=(((10, 20), (50, 60)),), period_s=100)
    mended = Trace(traces=(((30, 40), (90, 95)),), period_s=95)
    assert [row[AVAILABILITY] for row in rows] == [whole, mended, whole, mended]
    assert found.remarks[-3:] == [
        "left out: 2 entries without `computation` and `communication` above 0",
        "availability: client n has the n-th of 2 traces, modulo their number",
        "on-intervals that were empty, or overlapped and were joined: 4",
    ]


@pytest.mark.parametrize(
    ("capacity", "traces", "words"),
    [
        ("[]", None, "not a pickle"),
        ("{}", None, "it holds no mapping from devices to their figures"),
        ('{"1": {"computation": 0, "communication": 5}}', None, "no entry has `computation` and `communication` above"),
        ('{"1": {"computation": 1e-30, "communication": 5}}', None, "line 6, column compute_sps: '3.33333e.32' is not"),
        ('{"1": {"computation": 1, "communication": 5}}', '{"0": 3}', "a trace has no `active`, `inactive`"),
        (
            '{"1": {"computation": 1, "communication": 5}}',
            '{"0": {"active": ["x"], "inactive": [1], "finish_time": 9}}',
            "an instant of a trace is not a number",
        ),
        (
            '{"1": {"computation": 1, "communication": 5}}',
            '{"0": {"active": [NaN, 1], "inactive": [1, 2], "finish_time": 9}}',
            "an instant of a trace is not a number",
        ),
        (
            '{"1": {"computation": 1, "communication": 5}}',
            '{"0": {"active": [0], "inactive": [1], "finish_time": 1e300}}',
            "a trace: period_s: must be at most 1e.12",
        ),
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, capacity: str, traces: str | None, words: str) -> None:
    (one := tmp_path / "c").write_text(capacity, encoding="utf-8")
    (other := tmp_path / "t").write_text(traces or "", encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        fedscale.converted(one, other if traces else None, n_rows=5, seed=0).text("a test")


def test_more_than_a_spec_holds_is_refused_with_the_number_of_rows_that_fit(tmp_path: Path) -> None:
    capacity = {n: {"computation": 1 + n, "communication": 100} for n in range(300)}
    trace = {"active": [*range(0, 100, 2)], "inactive": [*range(1, 101, 2)], "finish_time": 100}
    (one := tmp_path / "c").write_text(json.dumps(capacity), encoding="utf-8")
    (other := tmp_path / "t").write_text(json.dumps({"0": trace}), encoding="utf-8")
    with pytest.raises(BadInput, match=r"300 devices have 15,000 on-intervals, .* try --rows 200"):
        fedscale.converted(one, other, n_rows=300, seed=0)
    found = fedscale.converted(one, other, n_rows=200, seed=7)
    assert len(found.rows) == 200
    assert found.rows != fedscale.converted(one, other, n_rows=200, seed=8).rows


# ---- MobiPerf


def measurement(device: str | None, kind: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"network_type": more.pop("network", "WIFI"), "device_info": {"id": device} if device else {}}
    return {"type": kind, "success": True, "device_properties": about, "values": values, **more}


def throughput(device: str | None, kbps: Any, up: str | None = None, **more: Any) -> dict[str, Any]:
    parameters = {} if up is None else {"dir_up": up}
    return measurement(device, "tcpthroughput", {"tcp_speed_results": kbps}, parameters=parameters, **more)


MEASURED = [
    throughput("a", [100, 300, 200], up="true"),
    throughput("a", "[900.0, 1100.0]", up="false"),
    throughput("a", [3000]),
    measurement("a", "ping", {"mean_rtt_ms": "50.5"}),
    throughput("b", [400], up="Up"),
    throughput("b", [800]),
    measurement("b", "ping", {"mean_rtt_ms": 20}),
    measurement("b", "ping", {"mean_rtt_ms": 40}, network="LTE"),
    throughput("c", [400]),
    measurement("a", "traceroute", {"num_hops": "3"}),
    throughput("a", [9], success=False),
    throughput("a", "[]"),
]


@pytest.mark.parametrize("form", ["list", "lines"])
def test_a_device_has_the_medians_of_its_measurements(tmp_path: Path, form: str) -> None:
    path = tmp_path / "mobiperf.json"
    lines = "\n".join(map(json.dumps, MEASURED)) + "\n"
    path.write_text(json.dumps(MEASURED) if form == "list" else lines, encoding="utf-8")
    found = mobiperf.converted([path], n_rows=10, seed=0)
    rows = devices_in(found.text("a test")).rows
    assert [tuple(row.values()) for row in rows] == [(2e5, 2e6, 0.02525), (4e5, 8e5, 0.015)]
    assert found.remarks == [
        "2 of 2 devices, drawn with seed 0; medians of their measurements",
        "3 of 12 measurements are no successful throughput or ping",
        "left out: 1 devices without a measurement of each of up_bps, down_bps, latency_s",
    ]
    assert mobiperf.converted([path], n_rows=10, seed=0, network="wifi").rows[1]["latency_s"] == 0.01


def test_measurements_without_a_device_are_devices_of_their_own(tmp_path: Path) -> None:
    """As in files of which others kept the throughputs alone; a throughput without a direction is one down."""
    path = tmp_path / "down.json"
    path.write_text(json.dumps([{"tcp_speed_results": [1000, 2000, 3000]}, {"tcp_speed_results": [5000]}]))
    found = mobiperf.converted([path], n_rows=10, seed=0)
    assert (found.columns, [row["down_bps"] for row in found.rows]) == (("down_bps",), [2e6, 5e6])
    assert found.remarks[-1] == "not measured: up_bps, latency_s"


@pytest.mark.parametrize(("network", "words"), [("LTE", "there are LTE"), (None, "none has a `network_type`")])
def test_a_network_without_measurements_is_refused_by_name(tmp_path: Path, network: str | None, words: str) -> None:
    about = {} if network is None else {"device_properties": {"network_type": network}}
    (path := tmp_path / "m.json").write_text(json.dumps([{"tcp_speed_results": [1], **about}]))
    with pytest.raises(BadInput, match=f"--network wlan: no measurement is on it; {words}"):
        mobiperf.converted([path], n_rows=10, seed=0, network="wlan")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{]", "is neither a list in JSON nor has one measurement in JSON a line"),
        ("[3]", "measurement 1 is not an object of JSON"),
        ('[{"success": false}]', "1 measurements give no device its figures"),
        (json.dumps([throughput("a", [1], up="true"), throughput("b", [1])]), "no device its figures of up_bps, down"),
    ],
)
def test_measurements_of_no_use_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (path := tmp_path / "m.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        mobiperf.converted([path], n_rows=5, seed=0)


# ---- the command


def test_the_command_writes_a_file_that_a_spec_takes(strata: Strata, home: Path) -> None:
    (home / "capacity").write_bytes(PICKLED["numpy3"])
    done = strata("profiles", "convert", "fedscale", "capacity", "--to", "devices.csv")
    assert done.code == 0, done.err
    assert "2 of 2 devices, drawn with seed 0" in done.err
    assert "devices.csv has 2 rows of compute_sps, up_bps, down_bps" in done.err
    text = (home / "devices.csv").read_text(encoding="utf-8")
    assert text.startswith("# strata profiles convert fedscale: capacity (sha256 ")
    (home / "spec.yaml").write_text("devices: {file: devices.csv}", encoding="utf-8")
    file = read_spec(home / "spec.yaml").devices.file
    assert file is not None
    assert math.isclose(file.devices.rows[1]["up_bps"], 800_250)
    for wrong in (("fedscale", "capacity", "--network", "WIFI"), ("mobiperf", "capacity", "--forward-flops", "5")):
        assert strata("profiles", "convert", *wrong, "--to", "other.csv").code == 1
    assert not (home / "other.csv").exists()
