"""The experiments that come with StrataFL: a name, what each shows, and what it costs."""

from __future__ import annotations

from pathlib import Path

from shared.core import parsing
from shared.federation.spec_parser import parse_run_spec
from shared.spec import catalogue
from shared.spec.catalogue import CpuTime, Entry, Times

ROOT = Path(__file__).parents[3]


def test_the_experiments_are_the_files_of_the_repository() -> None:
    names = [path.stem for path in sorted((ROOT / "experiments").glob("*.yaml"))]
    assert [entry.name for entry in catalogue.entries()] == [*catalogue.files()] == names
    assert "quickstart" in names


def test_every_experiment_is_a_spec_that_bears_its_name() -> None:
    for entry in catalogue.entries():
        raw = parsing.load(entry.text, entry.name)
        assert isinstance(raw, dict)
        assert parse_run_spec(raw) == entry.spec
        assert entry.spec.name == entry.name


def test_what_an_experiment_says_of_itself_is_its_first_comment_without_commands() -> None:
    entry = Entry(
        "x", "# In 1 line (a. b.).\n# Another: Fig. 2.\n#   strata run x\n#   strata ls\n\n# not this\nname: x\n"
    )
    assert entry.about == "In 1 line (a. b.). Another: Fig. 2."
    assert entry.summary == "In 1 line (a. b.)."
    assert entry.commands == ["strata run x", "strata ls"]
    assert Entry("x", "name: x\n").about == ""


def test_the_cpu_time_of_other_rounds_is_estimated_and_says_so() -> None:
    entry = Entry("x", "num_rounds: 10\n")
    whole, some = CpuTime(seconds=100, rounds=10), CpuTime(seconds=25, rounds=2, start=5)
    assert entry.cost(Times(machine="m", cpu_s={"x": whole})) == "100 s"
    assert entry.cost(Times(machine="m", cpu_s={"x": some})) == "105 s, estimated from 2 rounds"  # 5 + 20 / 2 * 10
    assert entry.cost(Times(machine="m", cpu_s={})) == "not measured"
    assert entry.listed(Times(machine="m", cpu_s={"x": some}))["cpu_s"] == 105


def test_every_time_is_that_of_an_experiment() -> None:
    assert catalogue.measured().cpu_s.keys() <= catalogue.files().keys()
