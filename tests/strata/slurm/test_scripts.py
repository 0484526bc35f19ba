"""Job scripts ask for what the user named, keep the user's environment out, and hold nothing secret."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shared.core.errors import BadInput
from strata.commands.slurm import _options
from strata.slurm.deployment import SECRETS
from strata.slurm.options import AGENTS, CHECK, CORE, EDGES, Options
from strata.slurm.scripts import script, write_scripts
from tests.strata.slurm.made import deployment

GIVEN = dict.fromkeys(
    (
        "gres",
        "core_gres",
        "partition",
        "agent_partition",
        "account",
        "qos",
        "constraint",
        "time",
        "mem",
        "network",
        "setup",
    )
)


def directives(text: str) -> dict[str, str]:
    """The options of `sbatch` in a script."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return {name: value for line in lines for name, _, value in [line.partition("=")]}


def given(**more: object) -> Options:
    """Options of a command line."""
    return _options({**GIVEN, "sbatch": None, "hasten": False, "every_s": 5.0, **more})


def test_each_kind_is_a_job_of_one_task_that_begins_anew_and_is_warned_of_its_end(tmp_path: Path) -> None:
    made = deployment(tmp_path, lead_s=90, agents_per_node=3)
    for kind in (CORE, EDGES, AGENTS):
        found = directives(script(made, kind))
        assert (found["nodes"], found["ntasks"], found["export"]) == ("1", "1", "NONE")
        assert found["signal"] == "B:USR1@90"
        assert found["job-name"] == f"strata-default-abc-{kind}"
        assert "requeue" in found
    assert "no-requeue" in directives(script(made, CHECK))
    assert directives(script(made, AGENTS))["cpus-per-task"] == "3"
    assert directives(script(made, EDGES))["cpus-per-task"] == "1"


def test_gpus_and_their_partition_are_for_agents_alone(tmp_path: Path) -> None:
    options = given(gres="gpu:2", partition="main", agent_partition="gpu", sbatch=["--reservation=course"])
    made = deployment(tmp_path, **options.model_dump())
    agents, edges = directives(script(made, AGENTS)), directives(script(made, EDGES))
    assert (agents["gres"], agents["partition"]) == ("gpu:2", "gpu")
    assert "gres" not in edges
    assert edges["partition"] == "main"
    assert edges["reservation"] == agents["reservation"] == "course"


def test_no_secret_is_in_a_script_and_scripts_are_the_user_s_alone(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    write_scripts(made)
    paths = sorted((made.folder / "jobs").iterdir())
    assert [path.name for path in paths] == ["agents.sh", "check.sh", "core.sh", "edges.sh"]
    for path in paths:
        assert path.stat().st_mode & 0o077 == 0
        assert [name for name in SECRETS if made.secret(name) in path.read_text()] == []
        assert subprocess.run(["bash", "-n", str(path)], check=False, timeout=20).returncode == 0


def test_setup_comes_before_python(tmp_path: Path) -> None:
    file = tmp_path / "setup"
    file.write_text("module load cuda\nulimit -n 4096\n")
    lines = script(deployment(tmp_path, setup=given(setup=file).setup), CORE).splitlines()
    assert lines[-4:-1] == ["umask 077", "module load cuda", "ulimit -n 4096"]
    assert lines[-1].startswith("exec /usr/bin/python3 -P ")


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"partition": "a\n#SBATCH --uid=0"}, r"core\.partition"),
        ({"time": "two hours"}, r"core\.time"),
        ({"sbatch": ["reservation=x"]}, r"core\.more"),
        ({"network": "10.1.0.0/99"}, "network"),
        ({"name": "a b"}, "name"),
        ({"setup": Path("/nowhere")}, "setup"),
    ],
)
def test_what_cannot_be_used_is_named(more: dict[str, object], names: str) -> None:
    with pytest.raises(BadInput, match=names):
        given(**more)


@pytest.mark.parametrize("time", ["30", "30:00", "4:00:00", "2-12", "2-12:00:00"])
def test_slurm_s_forms_of_a_time_are_taken(time: str) -> None:
    assert given(time=time).core.time == time


def test_names_follow_from_the_index_of_a_task() -> None:
    options = Options(agents_per_node=3)
    assert options.names(EDGES, 2) == ["edge-2"]
    assert options.names(AGENTS, 1) == ["agent-1", "agent-2", "agent-3"]
    assert options.names(AGENTS, 2) == ["agent-4", "agent-5", "agent-6"]
