"""`strata check`: a package of all kinds passes, and each fault is found by the check that is about it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.core import plugins
from shared.core.errors import BadInput, UnknownName
from shared.training import models
from shared.training.metrics.metric import Metric
from strata.checks.run import Result, checked
from strata.main import app

PACKAGE = """
import numpy as np
import torch
from pydantic import Field
from torch import nn

from strata.plugins import (
    Algorithm, Context, DataSource, DeviceHooks, Loss, Metric, ModelFactory, Partitioner, Record, SelectionPolicy,
)


class Size(Record):
    n: int = Field(default=8, ge=1)


class Device(DeviceHooks):
    def prepare(self, ctx, state, message, owner):
        return None


def arrays(params):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    return {"train_x": x[:30], "train_y": y[:30], "test_x": x[30:], "test_y": y[30:]}


def build(sample, target, params):
    return nn.Sequential(nn.Flatten(), nn.Linear(sample.shape[-1], params.n), nn.Linear(params.n, target.n_outputs))


def every_nth(task, params):
    order = task.rng.permutation(len(task.labels))
    return [order[client :: task.n_clients] for client in range(task.n_clients)]


def lowest(ctx, seats, view, params):
    return sorted(seat.number for seat in seats)[: params.n]


def each(params, outputs, y):
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def hits(params, outputs, y):
    return torch.stack([torch.tensor(len(y)), (outputs.argmax(1) != y).sum()])


def share(params, state):
    return state[1] / state[0] if state[0] else None


NTH = Partitioner(name="nth", description="every n-th sample", assign=every_nth)
LOWEST = SelectionPolicy(name="lowest", description="the lowest numbers", params=Size, choose=lowest)
SIGNS = DataSource(name="signs", description="signs of sums", params=Size, arrays=arrays)
NARROW = ModelFactory(name="narrow", description="one hidden layer", params=Size, build=build)
PLAIN = Algorithm(name="plain", paper="none", device=Device())
LIKELY = Loss(name="likely", description="cross-entropy", kinds=frozenset({"classes"}), each=each)
WRONG = Metric(
    name="wrong", description="share of errors", kinds=frozenset({"classes"}), state=hits, value=share,
    largest=lambda params, n_classes: (1, 1), higher_is_better=False,
)
"""
PREPARE = "    def prepare(self, ctx, state, message, owner):\n        return None"
FAULTS = [
    ("def prepare(self, ctx", "def prepared(self, ctx", "plain: its hooks keep no state", "is a hook's name misspelt?"),
    ("class Device(DeviceHooks):", "class Device(DeviceHooks):\n    seen = 0", "plain: its hooks keep no", "seen"),
    (
        PREPARE,
        "    def personalise(self, ctx, state, message, local, trainer):\n"
        "        if local:\n            next(iter(local.model.values())).add_(1)\n        return None",
        "plain: its hooks are pure",
        "personalise changed its input",
    ),
    (
        PREPARE,
        "    def init(self, ctx):\n        raise ValueError('no state')",
        "plain: two rounds run",
        "no state",
    ),
    (
        PREPARE,
        "    def personalise(self, ctx, state, message, local, trainer):\n"
        "        np.random.random()\n        return local.model if local else None",
        "plain: the seed decides the result",
        "global random stream",
    ),
    (
        PREPARE,
        "    def prepare(self, ctx, state, message, owner):\n        self.seen = 1\n        return None",
        "plain: its hooks are pure",
        "device: a hook sets self.seen; what it keeps belongs in its record `device_state`",
    ),
    ("default=8, ge=1", "ge=1", "narrow: its parameters have defaults", "without a default: n"),
    ('description="every n-th sample"', 'description=""', "nth: its description is one line", "one line"),
    ("target.n_outputs)", "target.n_outputs + 1)", "narrow: its outputs fit a target", "no data fit"),
    ("return nn.Sequential(", "torch.manual_seed(0)\n    return nn.Sequential(", "narrow: its seed alone", "two seeds"),
    (
        "params.n), nn.Linear(",
        "params.n), type('Cut', (nn.Module,), {'forward': lambda self, x: x.detach()})(), nn.Linear(",
        "narrow: all of it trains",
        "parameters without a gradient: 1.weight, 1.bias",
    ),
    ("default_rng(0)", "default_rng()", "signs: its arrays are valid", "two readings give different arrays"),
    ('"test_y": y[30:]', '"test_y": y[30:] / 3', "signs: its arrays are valid", "test_y"),
    ("task.rng.permutation", "np.random.permutation", "nth: each sample goes to one", "draw from `task.rng` only"),
    ("order[client :: task.n_clients]", "order[:2]", "nth: each sample goes to one client", "two clients"),
    ("sorted(seat.number for seat in seats)", "[99 for _ in seats]", "lowest: it is a pure function", "not have"),
    ('reduction="none"', 'reduction="mean"', "likely: it is a number for each prediction", "shape (12,)"),
    (
        "return nn.functional.cross_entropy(outputs, y",
        "outputs = outputs - outputs.mean(0)\n    return nn.functional.cross_entropy(outputs, y",
        "likely: it is a number",
        "depends on the others",
    ),
    ("torch.tensor(len(y))", "torch.tensor(1)", "wrong: its states add up", "do not add up"),
    ("(1, 1), higher", "(1, 0), higher", "wrong: its states add up", "see `largest`"),
    (".argmax(1) != y).sum()", ".argmax(1) != y).sum() * 2", "wrong: its states add up", "see `largest`"),
    ("return torch.stack([", "return list([", "wrong: its states add up", "is a list, not a tensor torch.int64 (2,)"),
]
"""What is replaced, by what, the check that finds it, and the cause that it gives."""
Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the package `checked_one`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STRATA_PLUGINS", "checked_one")

    def forget() -> None:
        sys.modules.pop("checked_one", None)
        for cached in (plugins._values_of, plugins.modules_of, plugins.digest_of):
            cached.cache_clear()

    def to(text: str) -> None:
        (tmp_path / "checked_one").mkdir()
        (tmp_path / "checked_one" / "__init__.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        forget()

    yield to
    forget()


def failed(results: list[Result]) -> list[tuple[str, str]]:
    return [(f"{result.name}: {result.check}", result.cause) for result in results if result.cause is not None]


def test_a_package_of_all_kinds_passes(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PACKAGE)
    monkeypatch.delenv("STRATA_PLUGINS")  # the command names the package
    monkeypatch.setenv("STRATA_PLUGINS", "")
    found = CliRunner().invoke(app, ["check", "checked_one"])
    assert found.exit_code == 0, found.output
    assert "FAIL" not in found.output
    assert "ok   algorithm plain: its hooks are pure" in found.output
    kinds = {result.kind for result in checked("checked_one")}
    assert kinds == {"algorithm", "data set", "loss", "metric", "model", "partition", "selection policy"}


@pytest.mark.parametrize(("old", "new", "check", "cause"), FAULTS, ids=[fault[1].strip()[:40] for fault in FAULTS])
def test_each_fault_is_found(write: Write, old: str, new: str, check: str, cause: str) -> None:
    assert old in PACKAGE
    write(PACKAGE.replace(old, new))
    name = check.partition(":")[0]
    found = failed(list(checked("checked_one", only=name)))
    assert [why for what, why in found if what.startswith(check) and cause in why], found


def test_a_frozen_layer_is_no_fault(write: Write) -> None:
    write(PACKAGE.replace("params.n), nn.Linear(", "params.n).requires_grad_(False), nn.Linear("))
    assert failed(list(checked("checked_one", only="narrow"))) == []


def test_a_factory_that_fails_is_named_with_what_it_is_given(write: Write) -> None:
    write(PACKAGE.replace("def build(sample, target, params):", "def build(sample, target):"))
    with pytest.raises(BadInput, match=r"^build\(sample, target, params\) of the model narrow failed: TypeError: "):
        models.build("narrow", (1, 8, 8), 10, 0)


def test_what_needs_a_model_that_fits_is_tried_only_with_one(write: Write) -> None:
    write(PACKAGE.replace("target.n_outputs)", "target.n_outputs + 1)"))
    ((_, cause),) = failed(list(checked("checked_one", only="narrow")))
    assert "take sizes from `sample.shape` and `target.n_outputs`" in cause
    found = CliRunner().invoke(app, ["check", "checked_one", "--only", "narrow"])
    assert (found.exit_code, "FAIL model narrow: its outputs fit a target" in found.output) == (1, True)
    assert " checks, 1 failed" in found.output


def test_a_unit_is_one_of_the_known_ones() -> None:
    given: dict[str, Any] = {"state": id, "value": id, "largest": id, "unit": "percent"}
    with pytest.raises(ValueError, match="metric m: the unit 'percent' is none of share, number"):
        Metric(name="m", description="x", kinds=frozenset({"classes"}), **given)


def test_a_package_that_brings_nothing_is_no_success(write: Write) -> None:
    write("X = 1\n")
    found = CliRunner().invoke(app, ["check", "checked_one"])
    assert found.exit_code == 1
    assert "brings nothing" in found.output
    with pytest.raises(UnknownName, match="unknown value of checked_one 'plain'"):
        list(checked("checked_one", only="plain"))
