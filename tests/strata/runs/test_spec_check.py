"""A spec is checked in a process beside the launcher, which then need not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from shared.core.errors import StrataError
from shared.spec.run import RunSpec
from strata.launcher.environment import common
from strata.launcher.process import Process, ProcessDied, execute
from strata.launcher.topology import Topology
from strata.runs.spec_check import check_beside, with_topology_size
from tests.fork_server import shared_fork_server

Beside = Callable[..., Topology]


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """A topology that starts processes beside it; they run `module`, by default the one that is asked for."""

    class Prepared:
        def __init__(self, module: str = "") -> None:
            self.module, self.started = module, list[Process]()

        def start_beside(self, name: str, module: str, inherited: Mapping[str, int]) -> Process:
            start = execute if self.module else shared_fork_server().start  # which has imported torch
            process = start(name, self.module or module, common({}, ""), tmp_path / "log", inherited)
            self.started.append(process)
            return process

    return cast("Beside", Prepared)


def spec(**fields: Any) -> RunSpec:
    return with_topology_size(RunSpec.model_validate({"data": {"name": "digits", "n_train": 400}, **fields}))


def test_a_spec_that_holds_passes_and_an_error_has_its_field_code_and_text(beside: Beside) -> None:
    topology = beside()
    check_beside(topology, spec())
    (process,) = cast("Any", topology).started
    assert process.wait(10.0)
    with pytest.raises(StrataError, match=r"^by_writer needs a data set with writers") as raised:
        check_beside(beside(), spec(partition="by_writer"))
    assert (raised.value.field, raised.value.code, raised.value.status) == ("partition.name", "bad_input", 422)


def test_a_process_that_ends_without_an_answer_is_named_with_its_log(beside: Beside) -> None:
    with pytest.raises(ProcessDied, match=r"spec-check .*\n.*Expecting value"):
        check_beside(beside("json.tool"), spec())  # which reads a document from stdin, where none is


def test_what_the_check_says_meanwhile_appears_here(
    beside: Beside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talkative.py").write_text(
        "import sys\nfrom strata.runs import spec_check\n"
        "spec_check.checked = lambda spec: print('downloading', spec.name, file=sys.stderr)\nspec_check.main()\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_beside(beside("talkative"), spec(name="mine"))
    assert capfd.readouterr().err == "downloading mine\n"
