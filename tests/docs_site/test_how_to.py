"""The files shown on the how-to pages run unchanged."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.core import plugins
from shared.federation.registry import load_algorithm
from shared.results.onnx_export import to_onnx
from shared.results.saved_model import saved_model
from strata.checks.run import Result, checked
from strata.objects.run import load_run
from tests.fork_server import forked_servers
from tests.shared.algorithms import test_contract as contract
from tests.shared.algorithms.layouts import ended, federation, run
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to"


def blocks(page: str, folder: Path = HOW_TO) -> list[str]:
    """Returns the Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", (folder / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


Save = Callable[..., str]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Save]:
    """Writes the code of a page to the path that the page names, and makes its package a plug-in; returns its name."""
    written: list[str] = []

    def write(page: str, path: str, block: int = 0) -> str:
        assert f"`{path}`" in (HOW_TO / page).read_text(encoding="utf-8")
        package = Path(path).parent.name
        (file := tmp_path / path).parent.mkdir(parents=True)
        file.write_text(blocks(page)[block], encoding="utf-8")
        monkeypatch.syspath_prepend(file.parents[1])
        monkeypatch.setenv("STRATA_PLUGINS", package)
        importlib.invalidate_caches()
        for cached in (plugins._values_of, plugins.modules_of, plugins.digest_of):
            cached.cache_clear()
        written.append(package)
        return package

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in written]:
        del sys.modules[name]


def failures(package: str) -> list[Result]:
    """The checks that a package does not pass; it has some."""
    results = list(checked(package))
    assert results
    return [result for result in results if result.cause is not None]


# ---- an algorithm


@pytest.fixture
def fedavgm(save: Save) -> str:
    """The page's algorithm."""
    save("own-algorithm.md", "mine/myalgs/fedavgm.py")
    return "fedavgm"


async def test_the_shown_algorithm_keeps_the_contract(fedavgm: str, tmp_path: Path) -> None:
    assert failures("myalgs") == []
    with contract.monitoring(load_algorithm(fedavgm)) as monitor:
        done = await run(tmp_path, contract.spec_of(fedavgm), agent_devices=(1,) * 4)
    contract.travels(done.experiment, monitor)


@pytest.mark.whole
async def test_the_shown_algorithm_is_fedavg_without_momentum_and_follows_its_formula_with_it(
    fedavgm: str, tmp_path: Path
) -> None:
    def spec(rounds: int, **params: float) -> dict[str, Any]:
        return contract.spec_of(fedavgm, algorithm={"name": fedavgm, "params": params}, num_rounds=rounds)

    plain = await run(tmp_path, contract.spec_of("fedavg"))
    without = await run(tmp_path, spec(2, beta=0))
    assert without.info.model_sha256 == plain.info.model_sha256
    once, twice = await run(tmp_path, spec(1, beta=0.5)), await run(tmp_path, spec(2, beta=0.5))
    start = await run(tmp_path, spec(1, beta=0))
    assert once.info.model_sha256 == start.info.model_sha256  # the first round has no v yet
    for name, tensor in twice.model.items():
        moved = twice.state.velocity[name] - 0.5 * once.state.velocity[name]
        assert torch.equal(tensor, once.model[name] + twice.state.velocity[name])
        assert torch.allclose(moved, plain.model[name] - start.model[name], atol=1e-6)  # FedAvg's second delta
    assert twice.info.model_sha256 != plain.info.model_sha256


@pytest.mark.whole
async def test_the_shown_device_algorithm_is_fedavg_with_a_large_bound_and_clips_with_a_small_one(
    save: Save, tmp_path: Path
) -> None:
    assert failures(save("own-algorithm.md", "mine/myalgs/clipped.py", block=1)) == []

    def spec(bound: float) -> dict[str, Any]:
        return contract.spec_of("clipped", algorithm={"name": "clipped", "params": {"bound": bound}}, num_rounds=1)

    plain = await run(tmp_path, contract.spec_of("fedavg", num_rounds=1))
    wide, narrow = await run(tmp_path, spec(1e9)), await run(tmp_path, spec(1e-3))
    assert wide.info.model_sha256 == plain.info.model_sha256
    norms = [row.figures["norm"] for row in narrow.rounds[0].seats]
    assert min(norms) > 1e-3
    moved = sum(float((narrow.model[name] - narrow.experiment.initial[name]).square().sum()) for name in narrow.model)
    assert 0 < moved**0.5 <= 1e-3 * (1 + 1e-5)  # a mean of updates of this norm


# ---- data, a model, a selection policy


@pytest.mark.whole
async def test_the_shown_data_set_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = blocks("own-data.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "own-data.md", "exec"), {})  # noqa: S102 - the page's own
    spec = {"data": "mine.npz", "num_devices": 4, "num_edges": 2, "num_rounds": 5, "lr": 0.1, "partition": "iid"}
    done = await run(tmp_path, spec, common={"data_dir": tmp_path})
    assert (done.info.accuracy or 0) > 0.9  # of two classes


@pytest.mark.whole
async def test_the_shown_model_is_trained(save: Save, tmp_path: Path) -> None:
    assert failures(save("own-model.md", "mine/mymodels/small_cnn.py")) == []
    done = await run(tmp_path, contract.spec_of("fedavg", model="small_cnn"))
    assert sum(tensor.numel() for tensor in done.model.values()) == 8 * 9 + 8 + 72 * 10 + 10
    assert math.isfinite(done.info.loss or math.nan)


@pytest.mark.whole
async def test_the_shown_model_with_a_parameter_is_trained_on_a_table(save: Save, tmp_path: Path) -> None:
    text = (HOW_TO / "own-model.md").read_text(encoding="utf-8")
    code = textwrap.dedent(re.findall(r"^    ```python\n(.*?)^    ```", text, re.MULTILINE | re.DOTALL)[0])
    package = save("own-model.md", "mine/mymodels/small_cnn.py")
    (tmp_path / "mine" / package / "table_net.py").write_text(code, encoding="utf-8")
    assert failures(package) == []
    model = {"name": "table_net", "params": {"hidden": 5}}
    done = await run(tmp_path, contract.spec_of("fedavg", model=model, data="breast_cancer", partition="iid"))
    assert sum(tensor.numel() for tensor in done.model.values()) == 30 * 5 + 5 + 2 * 5 + 5 * 2 + 2


@pytest.mark.whole
async def test_the_shown_selection_policy_selects_by_the_losses_of_earlier_rounds(save: Save, tmp_path: Path) -> None:
    """With all seats as candidates, `power_of_choice` selects the same ones."""
    assert failures(save("own-selection-policy.md", "mine/mypolicies/highest_loss.py")) == []
    spec = contract.spec_of("fedavg", num_devices=6, num_edges=2, num_rounds=6, fraction_train=1 / 3)
    known = {**spec, "select": "power_of_choice", "fraction_candidates": 1.0}
    rounds = []
    for tried in ({**spec, "select": "highest_loss"}, known):
        done = await run(tmp_path, tried, agent_devices=(6,))
        rounds.append([sorted(row.seat for row in detail.seats) for detail in done.rounds])
    assert rounds[0] == rounds[1]
    assert {seat for seats in rounds[0] for seat in seats} == set(range(6))


# ---- a spec field, in a copy of the code


REFUSAL = """
import sys
from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec

print(parse_spec({}).lr_decay)
try:
    parse_spec({"lr_decay": 0.9, "num_rounds": 1})
except BadInput as error:
    print(error.field)
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of `shared`, which a reader may edit."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "shared", tmp_path / "copy" / "shared", ignore=ignored)
    return tmp_path / "copy"


def edit(path: Path, pattern: str, new: Callable[[str], str]) -> None:
    """Replaces the one match of a pattern."""
    text, n = re.subn(pattern, lambda found: new(found[0]), path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert n == 1, (pattern, n)
    path.write_text(text, encoding="utf-8")


def output(copy: Path, script: str, *args: str) -> list[str]:
    """The lines that a script prints which imports the copy of `shared`, and all else from here."""
    env = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_shown_spec_field_has_its_default_and_its_check(copied: Path) -> None:
    field, check = blocks("own-spec-field.md")
    specs = copied / "shared" / "spec" / "experiment.py"
    edit(specs, r"^    lr: .*\n", lambda found: found + field)
    edit(specs, r"^def _numbers\(.*\n", lambda found: found + check)
    assert output(copied, REFUSAL) == ["1.0", "lr_decay"]


# ---- Python


@pytest.mark.e2e
def test_the_shown_python_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """That of the page, and that with which the home page and the README begin."""
    pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    (home,) = blocks("index.md", ROOT / "docs")
    assert home in blocks("README.md", ROOT)
    monkeypatch.chdir(tmp_path)
    with forked_servers():
        exec(compile("\n".join([*blocks("python.md"), home]), "python.md", "exec"), {})  # noqa: S102
    first, *_, saved, swept, refused, of_home = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"0\.\d+ dict_keys\(\[.*'head\.weight'.*\]\)", of_home)
    assert re.fullmatch(r"1 0\.\d+", first)
    assert saved.startswith("0.")
    assert re.search(r"2 of 2 combinations completed, in \S+> 0\.(05|1)$", swept)
    assert refused.startswith("algorithm.params.nu | ")
    assert {path.name for path in tmp_path.iterdir()} >= {"accuracy.pdf", "accuracy.png", "compare.png", "report.html"}


# ---- the trained model


async def test_the_shown_ways_to_use_a_model_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the page's table: StrataFL, torch without StrataFL, and ONNX if that is installed."""
    monkeypatch.chdir(tmp_path)
    table, _, plain, onnx = blocks("use-the-model.md")
    exec(compile(table, "use-the-model.md", "exec"), {})  # noqa: S102
    spec = {"data": {"file": "patients.csv", "target": "state"}, "model": "mlp", "lr": 0.1, "num_devices": 2}
    async with federation(tmp_path / "fed", agent_devices=(2,), n_edges=1, common={"data_dir": tmp_path}) as fed:
        done = await ended(fed, await fed.submit({**spec, "num_rounds": 3, "num_edges": 1}))
    folder = fed.folder / "runs" / done.info.run
    found = load_run(folder).predict({"age": [61], "sex": ["f"], "bmi": [29.4]})
    for name in ("model.safetensors", "preprocessing.json"):
        shutil.copy(folder / name, tmp_path)
    assert re.findall(r"^(?:import|from) (\w+)", plain, re.MULTILINE) == ["json", "torch", "safetensors"]
    capsys.readouterr()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # of a file that the page leaves open
        exec(compile(plain, "use-the-model.md", "exec"), {})  # noqa: S102
    assert found.probabilities is not None
    by_class = dict(zip(found.classes, found.probabilities[0].tolist(), strict=True))
    assert ast.literal_eval(capsys.readouterr().out) == pytest.approx(by_class, abs=1e-5)
    if all(importlib.util.find_spec(package) for package in ("onnx", "onnxscript", "onnxruntime")):
        (tmp_path / "patients.onnx").write_bytes(to_onnx(saved_model(folder)))
        names: dict[str, Any] = {}
        exec(compile(onnx, "use-the-model.md", "exec"), names)  # noqa: S102
        (probabilities,) = names["session"].run(None, {"x": np.array([[61, 1, 0, 29.4]])})
        assert probabilities[0].tolist() == pytest.approx(list(by_class.values()), abs=1e-5)
