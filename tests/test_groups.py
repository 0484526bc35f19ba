"""Clients by the names of their groups (hospitals, domains), and scores by group, through the three tiers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.results.group_scores import group_columns, group_rows
from shared.results.reader import read_seats, read_visits
from shared.results.report.page import report
from shared.run_records.groups import group_fields, groups_text
from shared.run_records.runs import SeatInfo
from shared.training.data.groups import Groups
from strata.objects.run import load_run
from tests.shared.algorithms.layouts import ended, federation

SIZES = {"Zürich": 40, "Basel": 200, "St. Gallen": 90, "Genève": 12}
SPEC: dict[str, Any] = {
    "data": {"file": "h.csv", "target": "state", "group": "hospital"},
    "model": "mlp",
    "partition": "by_writer",
    "num_edges": 2,
    "num_devices": 4,
    "num_rounds": 3,
    "lr": 0.1,
    "metrics": ["accuracy", "f1"],
}


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Returns a folder with a table of patients of four hospitals."""
    rng = np.random.default_rng(0)
    rows = [
        f'{a:.3f},{b:.3f},"{name}",{"ill" if a + b > 0 else "well"}'
        for name, n in SIZES.items()
        for a, b in rng.normal(size=(n, 2))
    ]
    (tmp_path / "h.csv").write_text("\n".join(["a,b,hospital,state", *rows]) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.whole
async def test_seats_visits_report_and_tables_name_the_hospital_and_score_it(tmp_path: Path, hospitals: Path) -> None:
    async with federation(tmp_path / "fed", agent_devices=(2, 2), n_edges=2, common={"data_dir": hospitals}) as fed:
        run = await ended(fed, await fed.submit(SPEC))
        seats = (await fed.seats(run.info.run)).seats
    folder = fed.folder / "runs" / run.info.run
    data, population = run.experiment.data, run.experiment.population
    assert sorted(seat.groups for seat in seats) == sorted((name,) for name in SIZES)
    for seat in seats:  # the name is that of the rows which the seat trains on and is tested on
        assert data.train_group is not None
        assert data.test_group is not None
        names, own = data.reading.groups, population.seat(seat.seat)
        assert {names[number] for number in data.train_group[own.train]} == set(seat.groups)
        assert {names[number] for number in data.test_group[own.test.indices]} <= set(seat.groups)
    assert {row.groups for row in run.rounds[0].seats} == {(name,) for name in SIZES}
    assert {visit.groups for _, visit in read_visits(folder)} == {(name,) for name in SIZES}
    assert [seat.groups for seat in read_seats(folder)] == [seat.groups for seat in seats]

    with (folder / "groups.csv").open(encoding="utf-8") as file:
        table = {row["group"]: row for row in csv.DictReader(file)}
    assert sorted(table) == sorted(SIZES)
    accuracies = {name: float(row["accuracy"]) for name, row in table.items()}
    n_right = sum(accuracies[name] * int(row["n_test"]) for name, row in table.items())
    assert sum(int(row["n_test"]) for row in table.values()) == len(data.test_y)
    assert n_right / len(data.test_y) == pytest.approx(run.info.accuracy)  # each test row is of one hospital
    finals = {visit.groups[0]: visit for kind, visit in read_visits(folder) if kind == "evaluate"}
    for name, visit in finals.items():  # each hospital is one client, which tests on the hospital's rows
        assert accuracies[name] == pytest.approx(visit.received_accuracy)
        assert float(table[name]["received_f1"]) == pytest.approx(visit.received_metrics["f1"])

    page = report([folder])
    assert all(page.count(name) >= 2 for name in SIZES)  # among the devices, and with its scores
    frame = load_run(folder).to_pandas("devices")
    assert sorted(frame["groups"]) == sorted(SIZES)
    assert load_run(folder).to_pandas("groups")["accuracy"].to_dict() == pytest.approx(accuracies)
    assert [column.name for column in group_columns(run.info)][:4] == ["group", "test", "clients", "accuracy"]


async def test_where_edges_are_the_clients_their_rows_name_the_groups(tmp_path: Path, hospitals: Path) -> None:
    spec = SPEC | {"client": "edge", "num_edges": 4, "num_rounds": 1}
    async with federation(tmp_path / "fed", agent_devices=(2, 2), n_edges=4, common={"data_dir": hospitals}) as fed:
        run = await ended(fed, await fed.submit(spec))
    assert sorted(edge.groups for edge in run.rounds[0].edges) == sorted((name,) for name in SIZES)
    assert sorted(row["group"] for row in group_rows(run.info)) == sorted(SIZES)


async def test_mixed_clients_name_all_groups_and_data_without_names_number_them(tmp_path: Path) -> None:
    spec = {"data": "breast_cancer", "model": "mlp", "partition": "iid", "num_devices": 2, "num_edges": 1}
    async with federation(tmp_path / "fed", agent_devices=(2,), n_edges=1) as fed:
        run = await ended(fed, await fed.submit({**spec, "num_rounds": 1}))
        seats = (await fed.seats(run.info.run)).seats
    assert [seat.n_groups for seat in seats] == [8, 8]
    assert [row["group"] for row in group_rows(run.info)] == [str(number) for number in range(8)]
    assert "n_clients" not in group_rows(run.info)[0]  # no client has a single hospital


def test_a_run_without_groups_says_nothing_of_them() -> None:
    fields = {"seat": 0, "role": "train", "home": 0, "state": "taken", "profile": "p", "n_train": 1, "n_test": 0}
    seat = SeatInfo(**fields, label_counts=(1,))
    assert not {"groups", "n_groups"} & json.loads(seat.model_dump_json()).keys()
    assert groups_text(seat) == ""


def test_of_many_groups_the_largest_are_named_and_the_others_counted() -> None:
    numbers = np.repeat(np.arange(12), np.arange(1, 13))
    groups = Groups(numbers, numbers, ["first"])
    names = groups.named("train", np.arange(len(numbers)))
    assert names == (*(str(number) for number in range(11, 0, -1)), "first")
    fields = {"seat": 0, "role": "train", "home": 0, "state": "taken", "profile": "p", "n_train": 1, "n_test": 0}
    seat = SeatInfo(**fields, label_counts=(1,), **group_fields(names))
    assert groups_text(seat) == "11, 10, 9, 8, 7, 6, 5, 4, 3, 2 and 2 more"
