"""What code of a user raises becomes an error that says type, text, file and line."""

import asyncio
import importlib
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.core import user_code as code
from shared.core.errors import BadInput, UserCodeFailed
from shared.core.user_code import described, user_code

SOURCE = """\
import sys
from dataclasses import dataclass


class Mine(BaseException):
    def __str__(self):
        raise ValueError


@dataclass
class Held:
    x: int


def key(): return {}["my own words"]
def asserts(x=3): assert x == 4
def leaves(): sys.exit(7)
def ends(): next(iter(()))
def mine(): raise Mine
def missing(): Held()
def deep(n): return deep(n + 1)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    folder = tmp_path / getattr(request, "param", "")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine_raises.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("mine_raises", None)
    yield importlib.import_module("mine_raises")
    del sys.modules["mine_raises"]


@pytest.mark.parametrize("mine", ["", "lib/python3/site-packages"], indirect=True, ids=["own", "installed"])
@pytest.mark.parametrize(
    ("call", "line", "said"),
    [
        (lambda m: m.key(), 15, "KeyError: 'my own words'"),
        (lambda m: m.asserts(), 16, "AssertionError: def asserts(x=3): assert x == 4"),
        (lambda m: m.leaves(), 17, "SystemExit: 7"),
        (lambda m: m.ends(), 18, "StopIteration: def ends(): next(iter(()))"),
        (lambda m: m.mine(), 19, "Mine: def mine(): raise Mine"),
        (lambda m: m.missing(), 20, "TypeError: Held.__init__() missing 1 required positional argument: 'x'"),
        (lambda m: m.deep(0), 21, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_whatever_is_raised_has_its_type_text_file_and_line(mine, call, line, said, monkeypatch):
    monkeypatch.setattr(code, "_NOT_USERS", (*code._NOT_USERS, __file__))  # this file calls, as the tiers do
    with pytest.raises(UserCodeFailed) as error, user_code("the loss mine", field="loss"):
        call(mine)
    assert error.value.detail.startswith(f"the loss mine failed: {said}")
    assert f"({mine.__file__}:{line}, in " in error.value.detail
    assert (error.value.field, error.value.status, error.value.code) == ("loss", 422, "user_code")


def test_a_syntax_error_is_where_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "unfinished.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeFailed, match=r"SyntaxError: .*unfinished.py:2\)"), user_code("the package unfinished"):
        __import__("unfinished")


def test_an_error_below_torch_and_numpy_is_at_the_users_line_if_there_is_one(monkeypatch):
    def forward(x):
        return torch.nn.functional.linear(x, torch.zeros(3, 4))

    with pytest.raises(UserCodeFailed, match=rf"{__file__}:\d+, in forward\)"), user_code("the model mine"):
        forward(torch.zeros(2, 5))
    with pytest.raises(UserCodeFailed, match=rf"{__file__}:\d+, in test_an_error"), user_code("the data mine"):
        np.stack([np.zeros(2), np.zeros(3)])
    try:
        raise ValueError("much " * 1000)
    except ValueError as error:
        found = described(error)
    assert len(found) < 450
    assert f"({__file__}:" in found, "a long text leaves room for the place"
    monkeypatch.setattr(code, "_NOT_USERS", (*code._NOT_USERS, __file__))
    where = r"mat1 and mat2 .*torch/nn/modules/linear.py:\d+, in forward\)"
    with pytest.raises(UserCodeFailed, match=where), user_code("the model mine"):
        torch.nn.Linear(2, 3)(torch.zeros(1, 5))


async def test_our_errors_and_signals_pass_but_not_those_that_the_code_raises_itself():
    ours = BadInput("of ours")
    with pytest.raises(BadInput) as raised, user_code("anything"):
        raise ours
    assert raised.value is ours
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), user_code("anything"):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError), user_code("anything"):
        await asyncio.sleep(0)
    for error in (KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()):
        with pytest.raises(UserCodeFailed, match=rf"anything failed: {type(error).__name__}"), user_code("anything"):
            raise error
