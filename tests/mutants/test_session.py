"""A session finds out which changes tests notice, and goes on where it was stopped."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="`make mutants` installs it")
pytest.importorskip("coverage", reason="`make mutants` installs it")

from tests.mutants.packages import Package
from tests.mutants.recorded import append_line, read_lines
from tests.mutants.sample import sample
from tests.mutants.session import Session
from tests.mutants.tree import update_copy

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TOY = Package("toy", ("shared/wire/*.py",), ("tests/shared/wire",))
CODE = """\
def countdown(n):
    while n > 0:
        n = n - 1
    return n


def unnoticed(n):
    return n + 1


def uncovered(n):
    return n < 5
"""
TESTS = """\
from shared.wire.toy import countdown, unnoticed


def test_it_ends_at_zero():
    assert countdown(3) == 0


def test_it_runs():
    unnoticed(3)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one module and its tests, whose lines are recorded in `out`."""
    for name, text in {
        "shared/__init__.py": "",
        "shared/wire/__init__.py": "",
        "shared/wire/toy.py": CODE,
        "tests/shared/wire/test_toy.py": TESTS,
        "pytest.ini": "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\ntimeout = 20\n"
        "markers =\n    e2e\n    compose\n    slow\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "out").mkdir()
    collect(tmp_path)
    monkeypatch.chdir(tmp_path)
    # The forked processes are to import the toy, not what this process has imported.
    for name in [name for name in sys.modules if name == "shared" or name.startswith(("shared.", "tests.shared"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tests.mutants.session.START_S", 20.0)
    return tmp_path


def collect(toy: Path) -> None:
    """Record which test runs which line, as `make mutants` does."""
    command = [sys.executable, "-m", "tests.mutants.collect", str(toy / "out")]
    subprocess.run(command, cwd=toy, env={"PYTHONPATH": str(ROOT), "PATH": ""}, check=True, capture_output=True)


def session(toy: Path) -> Session:
    """A session of every line of the toy."""
    return Session(toy, toy / "out", sample(toy, 100, (TOY,)))


def verdicts(toy: Path) -> dict[str, str]:
    """The last verdict on each function's changed lines."""
    return {f"{v['function']}: {v['was']}": v["verdict"] for v in read_lines(toy / "out" / "verdicts.jsonl")}


def test_a_change_that_tests_notice_is_killed_and_another_survives(toy: Path) -> None:
    session(toy).run()
    found = verdicts(toy)
    assert found.pop("countdown: while n > 0:") in ("killed", "timeout")
    assert found.pop("countdown: n = n - 1") in ("killed", "timeout")
    assert found == {
        "countdown: return n": "killed",
        "unnoticed: return n + 1": "survived",
        "uncovered: return n < 5": "survived",
    }
    assert (toy / "shared/wire/toy.py").read_text("utf-8") == CODE


def test_a_session_that_was_stopped_goes_on_with_what_is_missing(toy: Path) -> None:
    session(toy).run()
    file = toy / "out" / "verdicts.jsonl"
    complete = read_lines(file)
    stopped = [json.dumps(verdict) for verdict in complete[:3]]
    file.write_text("\n".join([*stopped, stopped[0][:40]]), encoding="utf-8")
    session(toy).run()
    again = read_lines(file)
    assert [verdict["key"] for verdict in again[:3]] == [verdict["key"] for verdict in complete[:3]]
    assert Counter(verdict["key"] for verdict in again) == Counter(verdict["key"] for verdict in complete)
    session(toy).run()
    assert len(read_lines(file)) == len(again)


def test_a_survivor_is_tried_again_once_a_test_is_added(toy: Path) -> None:
    session(toy).run()
    n_before = len(read_lines(toy / "out" / "verdicts.jsonl"))
    test = "\n\ndef test_one_more():\n    assert unnoticed(3) == 4\n"
    (toy / "tests/shared/wire/test_toy.py").write_text(TESTS + test, encoding="utf-8")
    collect(toy)
    session(toy).run()
    assert verdicts(toy)["unnoticed: return n + 1"] == "killed"
    again = read_lines(toy / "out" / "verdicts.jsonl")[n_before:]
    assert {verdict["function"] for verdict in again} == {"unnoticed", "uncovered"}


def test_a_test_that_fails_without_any_change_kills_nothing(toy: Path) -> None:
    """It passes once, while lines are recorded, and never again."""
    fragile = """

def test_fragile(tmp_path_factory):
    import os
    marker = os.path.join(os.path.dirname(__file__), "ran")
    assert not os.path.exists(marker)
    open(marker, "w").close()
    unnoticed(3)
"""
    (toy / "tests/shared/wire/test_toy.py").write_text(TESTS + fragile, encoding="utf-8")
    collect(toy)
    session(toy).run()
    assert verdicts(toy)["unnoticed: return n + 1"] == "broken"
    session(toy).run()
    assert verdicts(toy)["unnoticed: return n + 1"] == "survived"


def test_a_session_that_is_told_the_reason_leaves_the_survivor_alone(toy: Path) -> None:
    session(toy).run()
    n_before = len(read_lines(toy / "out" / "verdicts.jsonl"))
    (toy / "tests/shared/wire/test_toy.py").write_text(TESTS + "\n\ndef test_more():\n    pass\n", encoding="utf-8")
    collect(toy)
    survivors = [v for v in read_lines(toy / "out" / "verdicts.jsonl") if v["verdict"] == "survived"]
    entries = [
        "[[survivor]]\n"
        + "".join(f"{name} = {json.dumps(v[name])}\n" for name in ("file", "function", "was", "becomes"))
        + 'reason = "a toy"\n'
        for v in {v["key"]: v for v in survivors}.values()
    ]
    (toy / "tests/mutants").mkdir()
    (toy / "tests/mutants/survivors.toml").write_text("\n".join(entries), encoding="utf-8")
    session(toy).run()
    assert len(read_lines(toy / "out" / "verdicts.jsonl")) == n_before


def test_equal_code_gives_equal_mutants_wherever_it_moves(toy: Path) -> None:
    before = sample(toy, 4, (TOY,))
    (toy / "shared/wire/toy.py").write_text("LIMIT = 3\n\n\n" + CODE, encoding="utf-8")
    after = sample(toy, 4, (TOY,))
    assert [mutant.key for mutant in before] == [mutant.key for mutant in after]
    assert [mutant.place.line + 3 for mutant in before] == [mutant.place.line for mutant in after]


def test_packages_take_turns_until_one_has_no_more_lines(toy: Path) -> None:
    (toy / "shared/storage").mkdir()
    (toy / "shared/storage/one.py").write_text("def f(n):\n    return n + 1\n", encoding="utf-8")
    other = Package("other", ("shared/storage/*.py",), ())
    assert [mutant.package.name for mutant in sample(toy, 4, (TOY, other))] == ["toy", "other", "toy", "toy"]


def test_the_copy_follows_the_working_tree(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a.py").write_text("a = 1\n", encoding="utf-8")
    (root / ".gitignore").write_text("b.py\n", encoding="utf-8")
    (root / "b.py").write_text("b = 1\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    update_copy(root, copy)
    (copy / "deep" / "a.py").write_text("a = 2  # a mutant\n", encoding="utf-8")
    (copy / "gone.py").write_text("", encoding="utf-8")
    update_copy(root, copy)
    assert {p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()} == {"deep/a.py", ".gitignore"}
    assert (copy / "deep" / "a.py").read_text("utf-8") == "a = 1\n"


def test_a_line_that_was_cut_off_costs_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    append_line(file, {"n": 1})
    with file.open("a", encoding="utf-8") as cut_off:
        cut_off.write('{"n": 2, "te')
    append_line(file, {"n": 3})
    assert read_lines(file) == [{"n": 1}, {"n": 3}]
