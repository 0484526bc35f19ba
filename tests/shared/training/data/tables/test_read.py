"""Tables as people have them: what most cells are decides, and what may be read in two ways is asked."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from shared.training.data.dataset import Dataset
from shared.training.data.open_data import open_data
from shared.training.data.sources import DataMalformed
from shared.training.description import Classes
from shared.training.specs import DataSpec

N = 60
RNG = np.random.default_rng(0)
AGE = RNG.integers(20, 90, N)
BMI = np.round(RNG.normal(26, 4, N), 2)
BMI[0] = 21.37
STATE = np.where(AGE + BMI > 80, "ill", "well")
HEADER = ("age", "bmi", "state")
Row = tuple[object, ...]
ROWS: list[Row] = [(age, f"{bmi:.2f}", state) for age, bmi, state in zip(AGE, BMI, STATE, strict=True)]


def text_of(rows: list[Row], header: tuple[str, ...] = HEADER, between: str = ",") -> str:
    return "".join(between.join(map(str, row)) + "\n" for row in (header, *rows))


def opened(folder: Path, text: str | bytes, name: str = "t.csv", **spec: Any) -> Dataset:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    said = DataSpec.model_validate({"file": name, "target": "state", **spec})
    return open_data(said, data_dir=folder, cache_dir=folder / "cache")


def with_bmi(change: Callable[[int, str], str]) -> list[Row]:
    """The rows, with other cells in the column of numbers."""
    return [(age, change(number, str(bmi)), state) for number, (age, bmi, state) in enumerate(ROWS)]


def with_column(name: str, cell: Callable[[int], object]) -> str:
    """The table with one more column in front."""
    return text_of([(cell(number), *row) for number, row in enumerate(ROWS)], (name, *HEADER))


def comma(_: int, bmi: str) -> str:
    return bmi.replace(".", ",")


# ---- how files are written

GERMAN = text_of(with_bmi(comma), between=";")
WRITTEN: dict[str, tuple[str | bytes, str, dict[str, Any], str]] = {
    "semicolons": (text_of(ROWS, between=";"), "t.csv", {}, "its cells are separated by semicolons"),
    "bars": (text_of(ROWS, between="|"), "t.txt", {}, "its cells are separated by bars"),
    "tabs, packed": (gzip.compress(text_of(ROWS, between="\t").encode()), "t.tsv.gz", {}, "separated by tabs"),
    "capitals": (text_of(ROWS), "T.CSV", {}, ""),
    "Excel's hint": ("sep=;\r\n" + text_of(ROWS, between=";"), "t.csv", {}, "separated by semicolons"),
    "byte order mark": (b"\xef\xbb\xbf" + text_of(ROWS).replace("\n", "\r\n").encode(), "t.csv", {}, ""),
    "UTF-16": (text_of(ROWS, between="\t").encode("utf-16"), "t.txt", {}, "its text is UTF-16"),
    "Latin-1": (
        text_of(ROWS, ("age", "Größe", "state")).encode("latin-1"), "t.csv", {"csv": {"encoding": "latin-1"}}, "",
    ),
    "decimal commas": (GERMAN, "t.csv", {}, "numbers have the decimal sign ','"),
    "quoted decimal commas": (text_of(with_bmi(lambda n, bmi: f'"{comma(n, bmi)}"')), "t.csv", {}, "decimal sign ','"),
    "comments above": ("# of 2024\n" + text_of(ROWS), "t.csv", {}, "lines of comments above the header: 1"),
    "comments within": (
        text_of([*ROWS[:9], ("#", "x"), *ROWS[9:]]), "t.csv", {"csv": {"comment": "#"}},
        "lines of comments that were left out: 1",
    ),
    "no header": (text_of(ROWS[1:], tuple(map(str, ROWS[0]))), "t.csv", {"csv": {"names": HEADER}}, ""),
    "blank rows": (text_of([*ROWS, ("", "", "")]) + "\n\n", "t.csv", {}, "rows without any cell that were left out: 1"),
    "a column of nothing": (text_of([(*row, "") for row in ROWS], (*HEADER, "")), "t.csv", {}, "column 4 has neither"),
}  # fmt: skip


@pytest.mark.parametrize("how", WRITTEN)
def test_a_table_is_the_same_however_its_file_is_written(tmp_path: Path, how: str) -> None:
    text, name, spec, note = WRITTEN[how]
    got, plain = opened(tmp_path, text, name, **spec), opened(tmp_path, text_of(ROWS), "plain.csv")
    assert got.digest == plain.digest
    assert [column.kind for column in got.reading.columns] == ["number", "number"]
    assert got.reading.classes == ("ill", "well")
    assert note in " ".join(got.reading.notes)
    assert bool(note) == bool(got.reading.notes)


def test_thousands_are_told_from_decimals_by_the_other_numbers_or_asked(tmp_path: Path) -> None:
    grouped = with_bmi(lambda number, _: f'"1,{number:03d}"')
    with pytest.raises(DataMalformed, match="in column bmi a comma may be the decimal sign or divide thousands"):
        opened(tmp_path, text_of(grouped))
    for said, first in (({"thousands": ","}, 1000.0), ({"decimal": ","}, 1.0)):
        got = opened(tmp_path, text_of(grouped), csv=said)
        assert got.reading.columns[1].mean == pytest.approx(first, rel=0.07)
    beside = [(f"{number}.5", *row[1:]) for number, row in enumerate(grouped)]
    assert opened(tmp_path, text_of(beside)).reading.columns[1].mean == pytest.approx(1000, rel=0.07)


# ---- cells

ODD = {
    "12,5": "data.csv: {decimal:",
    "37 kg": "59 of its 60 cells are finite numbers: mend it, or data.columns: {bmi: categories | ignore}",
    "inf": "finite numbers",
    "1e999": "finite numbers",
    "n/v": r"data.csv: \{marks:",
    "": "1 of 60 cells are missing: data.missing: drop leaves such rows out, mean puts",
    **dict.fromkeys(("?", "NA", "nan", "-", "N/A", "NULL", "#N/A"), "1 of 60 cells are missing: data.missing:"),
}


@pytest.mark.parametrize("cell", ODD)
@pytest.mark.parametrize("column", ["input", "target"])
def test_one_odd_cell_among_numbers_is_refused_by_line_and_column(tmp_path: Path, cell: str, column: str) -> None:
    rows = with_bmi(lambda number, bmi: f'"{cell}"' if number == 7 else bmi)
    message = ODD[cell] if column == "input" else ODD[cell].removesuffix(", mean puts")
    with pytest.raises(DataMalformed, match=rf"t\.csv, line 9: the cell of column bmi is .*{message}"):
        opened(tmp_path, text_of(rows), target="state" if column == "input" else "bmi")


def test_lines_are_those_of_an_editor(tmp_path: Path) -> None:
    odd = [(age, bmi, '"a note\nof two lines"') for age, bmi, _ in ROWS[:3]] + [(1, "x", "b"), *ROWS]
    with pytest.raises(DataMalformed, match="line 9: the cell of column bmi is 'x'"):
        opened(tmp_path, "\n" + text_of(odd))


def gaps(number: int, bmi: str) -> str:
    return "?" if number in (3, 40) else bmi


@pytest.mark.parametrize("missing", ["drop", "mean", "indicator"])
def test_missing_numbers_are_treated_as_the_spec_says_and_counted(tmp_path: Path, missing: str) -> None:
    split = ["test" if number % 5 == 0 else "train" for number in range(N)]
    rows = [(*row, part) for row, part in zip(with_bmi(gaps), split, strict=True)]
    got = opened(tmp_path, text_of(rows, (*HEADER, "split")), missing=missing)
    train = [number for number in range(N) if number % 5 and number != 3]
    mean, bmi = BMI[train].mean(), got.reading.columns[1]
    z = got.encode(got.train_x)[:, 1].double().numpy()
    if missing == "drop":
        assert (len(got.train_y), len(got.test_y), bmi.missing) == (47, 11, None)
        assert got.reading.notes == ("2 of 60 rows were left out, for missing cells of bmi (2)",)
        np.testing.assert_allclose((z.mean(), z.std()), (0, 1), atol=1e-5)
        return
    assert (len(got.train_y), len(got.test_y)) == (48, 12)
    assert bmi.mean == pytest.approx(mean, rel=1e-12)
    assert bmi.missing == bmi.mean  # of training rows alone
    assert z[2] == pytest.approx(0, abs=1e-6)
    assert got.encode(got.test_x)[8, 1].item() == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(np.delete(z, 2).std(), 1, atol=1e-5)
    assert got.reading.notes == (f"2 missing cells of bmi became {mean:g}, from the training rows",)
    if missing == "indicator":
        assert got.train_x[:, 2].tolist() == [float(row == 2) for row in range(48)]
        assert got.reading.columns[2].kind == "indicator"


def test_missing_categories_become_the_most_frequent_and_rows_without_a_target_are_left_out(tmp_path: Path) -> None:
    ward = lambda n: "NA" if n == 3 else "south" if n % 3 else "north"  # noqa: E731
    rows = [(ward(n), *row[:2], "" if n == 9 else row[2]) for n, row in enumerate(ROWS)]
    got = opened(tmp_path, text_of(rows, ("ward", *HEADER)), missing="mean")
    assert (got.reading.columns[0].categories, got.reading.columns[0].missing) == (("north", "south"), "south")
    assert got.reading.notes == (
        "1 of 60 rows were left out, for missing cells of state (1)",
        "1 missing cells of ward became 'south', from the training rows",
    )
    assert len(got.train_y) + len(got.test_y) == 59
    kept = opened(tmp_path, text_of(rows[:9], ("ward", *HEADER)), csv={"marks": []})
    assert kept.reading.columns[0].categories == ("NA", "north", "south")


# ---- columns

ASKED: dict[str, tuple[str | bytes, str]] = {
    "an index": (with_column("", lambda n: n), r'Unnamed: 0 looks like an id .*{"Unnamed: 0": ignore'),
    "a numbering": (with_column("x", lambda n: n + 1), "x looks like an id or a numbering of the rows"),
    "an id": (with_column("patient_id", lambda n: 7 * n % 50), "patient_id looks like an id"),
    "an id of texts": (with_column("who", lambda n: f"p{n:04d}"), "who has 60 different texts in 60 rows"),
    "a postal code": (with_column("zip", lambda n: f"0{n % 3}069"), "zip has leading zeros, as in '00069'"),
    "a date": (with_column("day", lambda n: f"2023-01-{n % 28 + 1:02d}"), "day holds dates or times"),
    "a German date": (with_column("day", lambda n: f"{n % 28 + 1}.1.2023 8:30"), "day holds dates or times"),
    "a time": (with_column("at", lambda n: f"{n % 24}:30"), "at holds dates or times"),
    "a compact date": (with_column("day", lambda n: 20230101 + n % 28), "day may hold dates, such as 20230101"),
    "a unit": (with_column("kg", lambda n: f"{n}.5 kg"), "kg holds numbers with 'kg'"),
    "a percentage": (with_column("p", lambda n: f"{n % 7} %"), "p holds numbers with '%'"),
    "a currency": (with_column("p", lambda n: f"€ {n % 7}"), "p holds numbers with '€'"),
    "texts and numbers": (
        with_column("p", lambda n: "none" if n % 5 < 3 else n),
        "p holds 24 numbers beside texts such as 'none'",
    ),
    "two cases": (with_column("sex", lambda n: "F" if n == 5 else "fm"[n % 2]), r"'f' \(line 2\) and 'F' \(line 7\)"),
    "nothing": (with_column("p", lambda n: ""), "column p has no values: data.columns: {p: ignore}"),
    "two columns": (
        text_of([(f"{n} %", f"{n:03d}", "ab"[n % 2]) for n in range(30)], ("p", "code", "state")),
        r"\(1\) column p .*; \(2\) column code",
    ),
    "two signs": (text_of([("1;2", "a"), ("3;4", "b")], ("x;y", "state")), "may be separated by commas or semicolons"),
    "two decimals": (
        text_of([(1.5, '"1,5"', "ab"[n % 2]) for n in range(9)], ("p", "q", "state")),
        r"column q writes numbers with the decimal sign ',', column p the decimal sign '\.'",
    ),
    "a header or a comment": ("#" + text_of(ROWS, ("x", "y", "z")) + text_of(ROWS), r"comment: '#'"),
    "an open quote": (text_of([*ROWS, (1, 2, '"x')]), "unexpected end of data"),
    "a name twice": (with_column("age", lambda n: n), "'age' comes 2 times"),
    "a column of parts": (
        with_column("split", lambda n: "lr"[n % 2]),
        r"if it is no such column: data\.columns: {split",
    ),
    "parts by another name": (
        with_column("Fold", lambda n: ("Train", "Train", "val")[n % 3]),
        r"column Fold looks like the parts of the data \(train, val\)",
    ),
    "no header": ("".join(f"{n}.5,{n}\n" for n in range(9)), "first row holds numbers only; data.csv: {names"),
    "gzip": (gzip.compress(text_of(ROWS).encode()), "packed by gzip: let its name end with .gz"),
    "zip": (b"PK\x03\x04" + bytes(30), "a zip archive or an Excel file"),
    "parquet": (b"PAR1" + bytes(30), "a Parquet file: save it as .csv"),
    "another encoding": (
        text_of([ROWS[0], ("ü", 1, 2), *ROWS]).encode("latin-1"),
        r"line 3: its text is not UTF-8: data\.csv: \{encoding: cp1252\}",
    ),
    "UTF-16 without a mark": (text_of(ROWS).encode("utf-16-le"), "bytes of zero: is its text UTF-16"),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_may_be_read_in_two_ways_is_asked_with_the_option_that_decides(tmp_path: Path, what: str) -> None:
    text, message = ASKED[what]
    with pytest.raises(DataMalformed, match=message) as caught:
        opened(tmp_path, text)
    assert caught.value.field == "data.file"


def test_every_damaged_byte_of_a_packed_table_is_named_or_harmless(tmp_path: Path) -> None:
    packed = gzip.compress(text_of(ROWS).encode())
    for at in range(10, 60):  # some break the blocks, others the sum
        content = packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :]
        with pytest.raises(DataMalformed, match=r"t\.csv\.gz"):
            opened(tmp_path, content, "t.csv.gz")


def test_ids_that_float64_rounds_to_one_number_stay_apart(tmp_path: Path) -> None:
    ids = [2**53 + n % 4 for n in range(N)]
    text = with_column("account", lambda n: ids[n])
    groups = opened(tmp_path, text, group="account").reading.groups
    assert groups == tuple(map(str, sorted(set(ids))))
    codes = opened(tmp_path, text, columns={"account": "categories"}).reading.columns[0]
    assert codes.categories == groups
    classes: Any = opened(tmp_path, text, target="account", group="account", kind="classes")
    assert classes.reading.classes == classes.reading.groups == groups
    assert np.array_equal(classes.train_group, classes.train_y), "the target may be the group"
    assert np.bincount(np.concatenate([classes.train_y, classes.test_y])).tolist() == [15] * 4


@pytest.mark.parametrize(
    ("cells", "use", "values"),
    [
        (["1.2.2024", "13.2.2024"], "date", [1706745600, 1707782400]),
        (["2/1/2024", "2/13/2024"], "date", [1706745600, 1707782400]),
        (["2024-02-01T01:00:00+01:00", "2024-02-01 00:00:01"], "date", [1706745600, 1706745601]),
        (["20240201", "20240213"], "date", [1706745600, 1707782400]),
        (["0:01", "23:59:59"], "date", [60, 86399]),
        (["5 kg", "7.5 kg"], "number", [5, 7.5]),
        (["$1", "$ 2"], "number", [1, 2]),
        (["12%", "-3%"], "number", [12, -3]),
        (["-$5", "$7.50"], "number", [-5, 7.5]),
        (["007", "8"], "number", [7, 8]),
    ],
)
def test_a_column_is_read_as_the_spec_says(tmp_path: Path, cells: list[str], use: str, values: list[float]) -> None:
    text = text_of([(cells[number % 2], *row) for number, row in enumerate(ROWS)], ("it", *HEADER))
    got = opened(tmp_path, text, columns={"it": use, "age": "ignore"})
    z, column = got.encode(got.train_x)[:, 0].double().numpy(), cast(Any, got.reading.columns[0])
    np.testing.assert_allclose(np.unique(z * column.std + column.mean), np.sort(values), rtol=1e-5)
    assert got.reading.notes == ("left out, as data.columns says: age",)


def test_dates_of_either_order_are_refused_and_a_column_that_says_nothing_is_told(tmp_path: Path) -> None:
    text = with_column("day", lambda n: f"{n % 9 + 1}/{n % 7 + 1}/2024")
    with pytest.raises(DataMalformed, match=r"line 2: .* is '1/1/2024'; the column does not tell whether days"):
        opened(tmp_path, text, columns={"day": "date"})
    got = opened(tmp_path, with_column("unit", lambda _: 0.1))
    assert got.reading.notes == ("column unit is the same in all training rows, and tells a model nothing",)
    assert not got.encode(got.train_x)[:, 0].any()


def test_codes_and_targets_are_categories_where_the_spec_says_so(tmp_path: Path) -> None:
    text = with_column("zip", lambda n: ("01067", "1067", "80331")[n % 3])
    got = opened(tmp_path, text, columns={"zip": "categories"})
    assert got.reading.columns[0].categories == ("01067", "1067", "80331")
    tiny = "1e-99999999999999999999"
    numbers = opened(tmp_path, with_column("x", lambda n: (tiny, "5", "-2")[n % 3]), columns={"x": "categories"})
    assert numbers.reading.columns[0].categories == ("-2", tiny, "5"), "numbers of any exponent stand by size"
    priced = text_of([(*row[:2], f"{n} EUR") for n, row in enumerate(ROWS)])
    with pytest.raises(DataMalformed, match="column state holds numbers with 'EUR'"):
        opened(tmp_path, priced)
    euros: Any = opened(tmp_path, priced, kind="numbers")
    assert (euros.target.kind, euros.reading.target.unit) == ("numbers", "EUR")
    whole = text_of([(*row[:2], n % 3) for n, row in enumerate(ROWS)])
    assert opened(tmp_path, whole, columns={"state": "categories"}).target == Classes(3)
    with pytest.raises(DataMalformed, match=r"data\.kind says classes, data.columns number"):
        opened(tmp_path, whole, kind="classes", columns={"state": "number"})


# ---- statistics


@pytest.mark.parametrize(
    "values",
    [
        1_700_000_000 + RNG.integers(0, 7200, 4000),  # Unix time of two hours
        2**40 + np.arange(4000) * 3,
        101_325 + RNG.permutation(4000) / 1e5,
        (RNG.permutation(4000) + 1) * 1e200,
        (RNG.permutation(4000) + 1) * 1e-200,
    ],
)
def test_numbers_are_standardised_before_they_become_float32(tmp_path: Path, values: Any) -> None:
    text = "x,state\n" + "".join(f"{value},{'ab'[n % 2]}\n" for n, value in enumerate(values.tolist()))
    got = opened(tmp_path, text)
    z = np.concatenate([got.encode(part).numpy()[:, 0] for part in (got.train_x, got.test_x)])
    assert len(np.unique(z)) == len(np.unique(values))
    train = got.encode(got.train_x).double().numpy()
    np.testing.assert_allclose((train.mean(), train.std()), (0, 1), atol=1e-6)


def test_numbers_that_float32_holds_keep_their_bits(tmp_path: Path) -> None:
    got: Any = opened(tmp_path, text_of(ROWS))
    raw = np.stack([AGE, BMI], 1).astype(np.float32)
    assert {tuple(row) for row in got.train_x.tolist()} <= {tuple(row) for row in raw.tolist()}
    assert got.normalisation.mean.tolist() == got.train_x.mean(0).tolist()
    assert got.normalisation.std.tolist() == got.train_x.std(0).tolist()
