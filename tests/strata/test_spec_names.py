"""Which spec a command or a call means: an experiment of StrataFL by its name, a file, or fields alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import BadInput
from shared.spec import catalogue
from strata.spec_files import file_of, read_spec
from tests.strata.conftest import Strata


def test_the_name_of_an_experiment_is_its_spec_in_any_folder() -> None:
    assert file_of("digits_moon") == catalogue.files()["digits_moon"]
    assert read_spec("digits_moon", ["num_rounds=2"]).algorithm.name == "moon"


@pytest.mark.parametrize("file", ["quickstart", "quickstart.yaml"])
def test_a_file_here_with_the_name_of_an_experiment_is_ambiguous(home: Path, file: str) -> None:
    (home / file).write_text("name: mine\n")
    with pytest.raises(BadInput, match=rf"is an experiment .*: write \./{file} for the file, or rename it"):
        file_of("quickstart")
    assert read_spec(f"./{file}").name == "mine"
    assert read_spec(Path(file)).name == "mine"
    (home / file).write_bytes(catalogue.files()["quickstart"].read_bytes())  # an equal copy: either will do
    assert read_spec("quickstart").name == "quickstart"


def test_a_folder_with_the_name_of_an_experiment_is_in_nobodys_way(home: Path) -> None:
    (home / "quickstart").mkdir()
    assert read_spec("quickstart").name == "quickstart"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("quikstart", "no such file, and no experiment has that name; did you mean 'quickstart'?"),
        ("experiments/quickstart.yaml", "`quickstart` names the experiment that comes with StrataFL"),
        ("nothing/like_it.json", "no experiment has that name; `strata experiments` lists them"),
    ],
)
def test_what_is_neither_file_nor_experiment_says_what_is_near(written: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_spec(written)
    assert words in refused.value.detail


def test_a_path_that_cannot_be_looked_at_is_not_called_missing(home: Path) -> None:
    (home / "file").touch()
    with pytest.raises(BadInput, match="Not a directory"):
        read_spec("file/spec.yaml")


def test_fields_alone_make_a_spec(strata: Strata, url: str, home: Path) -> None:
    plan = strata("sweep", "data=digits", "algorithm=fedprox", "lr=0.1,0.2", "--dry-run", "--url", url)
    assert plan.code == 0, plan.err
    assert "0.2" in plan.out


def test_a_field_that_is_the_name_of_a_file_is_that_file(strata: Strata, url: str, home: Path) -> None:
    (home / "lr=1").write_text("nom_rounds: 2\n")
    assert "num_rounds" in strata("run", "lr=1", "--url", url).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "name what to run"),
        (["sweep"], "name what to run"),
        (["sweep", "quickstart"], "name the fields to vary"),
        (["run", "quickstart", "lr"], "an override has the form key=value"),
        (["run", "lr=1", "quickstart"], "an override has the form key=value"),
        (["run", "quickstart", "=1"], "an override has the form key=value"),
    ],
)
def test_wrong_usage_is_told(strata: Strata, words: list[str], said: str) -> None:
    done = strata(*words)
    assert done.code == 2
    assert said in " ".join(done.err.replace("│", " ").split())


def test_the_experiments_are_listed_with_what_they_show_and_cost(strata: Strata) -> None:
    listed = strata("experiments")
    (row,) = [line for line in listed.out.splitlines() if "quickstart" in line]
    assert "A cloud, two edges and ten devices" in row
    assert "21 s" in row
    assert '"cpu_s": 21.2' in strata("experiments", "--format", "json").out


def test_the_spec_of_an_experiment_is_printed_as_it_is(strata: Strata) -> None:
    assert strata("experiments", "quickstart").out == catalogue.files()["quickstart"].read_text()
    assert "did you mean 'quickstart'" in strata("experiments", "quick_start").err
