"""Modules of a user through the three tiers: clients never see each other's state, and what is wrong is said first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from shared.core.errors import BadInput
from shared.federation.messages import Task
from shared.federation.trial import try_run
from shared.federation.visits.trainer import trainer_for
from shared.wire import codec
from strata.checks.run import checked
from tests.federation import small_spec
from tests.shared.algorithms.layouts import resolved, run
from tests.user_packages import Write, user_package  # noqa: F401

MODELS = """
import os
import random

import numpy as np
import torch
from torch import nn
from strata.plugins import ModelFactory

CALLS = 0


class Scaled(nn.Module):
    def __init__(self, how, n, k):
        super().__init__()
        self.how, self.scale, self.state = how, 1.0, None
        self.register_buffer("hidden", torch.ones(()), persistent=False)
        self.gru, self.out = nn.GRU(n, 8, batch_first=True), nn.Linear(8, k)

    def forward(self, x):
        global CALLS
        x = x.squeeze(1)
        if self.how == "attribute" and self.training:
            self.scale = 0.9 * self.scale + 0.3 * float(x.abs().mean())
        if self.how == "buffer" and self.training:
            self.hidden = 0.9 * self.hidden + 0.3 * x.abs().mean()
        if self.how == "global":
            CALLS += 1
            x = x / CALLS
        if self.how == "numpy":
            x = x * np.random.uniform(0.5, 1.5) * random.uniform(0.5, 1.5)
        if self.how == "outside":
            os.environ["OF_A_TEST"] = str(int(os.environ.get("OF_A_TEST", 1)) + 1)
            x = x / int(os.environ["OF_A_TEST"])
        start = None if self.state is None else self.state.mean(1, keepdim=True).expand(1, len(x), 8).contiguous()
        _, last = self.gru(x / self.scale / self.hidden, start)
        if self.how == "recurrent":
            self.state = last.detach()
        return self.out(nn.functional.dropout(last[0], 0.5) if self.how == "always_drops" else last[0])


class Mixing(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(n, k))

    def forward(self, x):
        return self.net(x / x.abs().mean())


def of(how):
    return ModelFactory(name=how, description="d", build=lambda s, t: Scaled(how, s.shape[-1], t.n_outputs))


A, B, C, D, E, F, G = map(
    of, ("attribute", "buffer", "recurrent", "global", "numpy", "outside", "always_drops")
)
M = ModelFactory(name="mixing", description="d", build=lambda s, t: Mixing(64, t.n_outputs))
"""
OF_THE_MODULE = ("attribute", "buffer", "recurrent")
OF_THE_PROCESS = ("global", "numpy", "always_drops")


@pytest.mark.parametrize("model", OF_THE_MODULE)
async def test_neither_agents_nor_their_number_change_a_bit_of_a_model_with_hidden_state(
    model: str,
    tmp_path: Path,
    user_package: Write,  # noqa: F811
) -> None:
    user_package(MODELS)
    spec = small_spec(model=model, num_devices=4, num_edges=1)
    one, other = [await run(tmp_path, spec, n_edges=1, agent_devices=layout) for layout in ((4,), (1, 2, 1))]
    assert codec.encode(one.state).digest() == codec.encode(other.state).digest()
    losses = [sorted((row.seat, row.own_loss) for d in end.rounds for row in d.seats) for end in (one, other)]
    assert losses[0] == losses[1]
    assert one.info.scores == other.info.scores


def experiment(**spec: Any) -> Any:
    data = {"name": "digits", "n_train": 60, "n_test": 20}
    return resolved(data=data, num_devices=2, num_edges=1, num_rounds=1, **spec)


@pytest.mark.parametrize("model", [*OF_THE_MODULE, *OF_THE_PROCESS])
def test_two_clients_have_the_same_results_in_both_orders(model: str, user_package: Write) -> None:  # noqa: F811
    user_package(MODELS)
    found = [{}, {}]
    for ends, order in zip(found, ((0, 1), (1, 0)), strict=True):
        run = experiment(model=model)
        for seat in map(run.population.seat, order):
            trainer = trainer_for(run, Task(batch_size=8), seat.train, seat.test, seat=seat.number)
            ctx = run.ctx(phase="train", round_no=1, n_clients=2, edge=0).at(seat=seat.number)
            run.device.seed(ctx.seed("torch"), all_generators=run.has_own_module)
            fit = trainer.fit(ctx, run.initial)
            ends[seat.number] = trainer.evaluate(fit.model), codec.digest_of(save(fit.model))
    assert found[0] == found[1]


def test_a_model_that_depends_on_the_order_of_clients_is_refused_by_name(
    user_package: Write,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OF_A_TEST", "1")
    package = user_package(MODELS)
    with pytest.raises(BadInput, match=r"outside: gru.weight_ih_l0 of a client depends on which client"):
        try_run(experiment(model="outside"))
    causes = {(found.name, found.cause) for found in checked(package) if found.check == "no client sees another's"}
    assert {name for name, cause in causes if cause} == {"outside"}
    assert "of a client depends on which client was trained before it" in next(c for _, c in causes if c)


def test_a_stack_whose_devices_depend_on_each_other_is_refused(user_package: Write) -> None:  # noqa: F811
    user_package(MODELS)
    try_run(experiment(model="mixing"))
    with pytest.raises(BadInput, match=r"vectorised: mixing cannot train many devices at once: net.1.weight"):
        try_run(experiment(model="mixing", vectorised={"width": 2}))
    try_run(experiment(model="mlp", vectorised={"width": 2}))


def test_default_generators_are_left_as_they_were(user_package: Write) -> None:  # noqa: F811
    user_package(MODELS)
    found = experiment(model="always_drops")
    before = torch.get_rng_state()
    with found.evaluating():
        first = torch.rand(())
    with found.evaluating():
        assert torch.equal(torch.rand(()), first)
    assert torch.equal(torch.get_rng_state(), before)
