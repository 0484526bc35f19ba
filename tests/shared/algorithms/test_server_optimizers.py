"""Server optimisers: Reddi et al., algorithms 1 and 2, at the cloud and at edges, through the three tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.by_hooks import ByHooks
from shared.federation.experiment import Experiment
from shared.federation.hooks import Broadcast, Update
from shared.federation.server_optimizers import Moments, step
from shared.federation.spec_parser import parse_spec
from shared.spec.optimizers import ServerAdam
from shared.training import models
from shared.training.evaluation import evaluate
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import ended, experiment_of, federation, four, ran, resolved, results_so_far, tried
from tests.shared.algorithms.plain_linear import Array

ADAM = {"name": "adam", "lr": 0.05, "beta1": 0.9, "beta2": 0.99, "tau": 0.01}
YOGI = {"name": "yogi", "lr": 0.05, "beta1": 0.8, "beta2": 0.9, "tau": 0.01}
ADAGRAD = {"name": "adagrad", "lr": 0.05, "tau": 0.02}
MOMENTUM = {"name": "momentum", "lr": 0.5, "beta1": 0.7}
SGD = {"name": "sgd", "lr": 1.5}
ALL = pytest.mark.parametrize("how", [SGD, MOMENTUM, ADAGRAD, ADAM, YOGI], ids=lambda how: how["name"])


def spec_of(server_optimizer: Any = None, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with different data, each of whose epochs is one full-batch step."""
    return {
        **four(),
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "num_rounds": 4,
        "server_optimizer": server_optimizer,
        **plain_linear.in_one_batch(**more),
    }


class Plain:
    """One server's optimiser in numpy and float64, as the paper writes it."""

    def __init__(self, how: dict[str, Any] | None) -> None:
        self.how: dict[str, Any] = {"name": "sgd", "lr": 1.0} if how is None else how
        self.m: Any = 0.0
        self.v: Any = self.how.get("tau", 0.0) ** 2

    def __call__(self, delta: Array) -> Array:
        """Returns what is added to x."""
        how = self.how
        if how["name"] == "sgd":
            return np.asarray(how["lr"] * delta)
        if how["name"] == "momentum":
            self.m = how["beta1"] * self.m + delta
            return np.asarray(how["lr"] * self.m)
        beta1 = how.get("beta1", 0.0)
        self.m = beta1 * self.m + (1 - beta1) * delta
        if how["name"] == "adagrad":
            self.v = self.v + delta**2
        elif how["name"] == "adam":
            self.v = how["beta2"] * self.v + (1 - how["beta2"]) * delta**2
        else:
            self.v = self.v - (1 - how["beta2"]) * delta**2 * np.sign(self.v - delta**2)
        return np.asarray(how["lr"] * self.m / (np.sqrt(self.v) + how["tau"]))


def plain(experiment: Experiment, cloud: Any, edges: Any = None) -> Array:
    """Computes the spec's rounds; edges that form models have optimisers of their own."""
    x, homes = plain_linear.joined(experiment.initial), [seat.home_edge for seat in experiment.population.seats]
    of_cloud, of_edges = Plain(cloud), [Plain(edges) for _ in range(2)]
    for round_no in range(1, experiment.spec.num_rounds + 1):
        moved, sizes = [], []
        for edge, optimiser in enumerate(of_edges):
            seats, w = [seat for seat, home in enumerate(homes) if home == edge], x
            n = [experiment.population.seats[seat].n_train for seat in seats]
            for _ in range(experiment.spec.most_edge_rounds):
                after = [plain_linear.trained(experiment, seat, w, round_no=round_no) for seat in seats]
                w = w + optimiser(np.average(after, axis=0, weights=n) - w)
            moved.append(w - x)
            sizes.append(sum(n))
        x = x + of_cloud(np.average(moved, axis=0, weights=sizes))
    return x


@ALL
def test_the_cloud_steps_as_the_paper_says(how: dict[str, Any]) -> None:
    done = tried(**spec_of(how))
    x = plain(done.experiment, how)
    assert flat.distance(done.model, plain_linear.parted(x)) < 2e-5
    assert flat.distance(done.model, plain_linear.parted(plain(done.experiment, None))) > 1e-3


@pytest.mark.matrix(2)
@ALL
def test_edges_and_cloud_have_optimisers_of_their_own(how: dict[str, Any]) -> None:
    """Two edge rounds; the edges' moments persist over rounds, the cloud's sees the edges' whole changes."""
    done = tried(**spec_of({"cloud": MOMENTUM, "edges": how}, edge_rounds=2))
    assert flat.distance(done.model, plain_linear.parted(plain(done.experiment, MOMENTUM, how))) < 5e-5
    forgetful = plain(done.experiment, MOMENTUM, None)
    assert flat.distance(done.model, plain_linear.parted(forgetful)) > 1e-3


NULL: tuple[dict[str, Any], ...] = ({"name": "sgd"}, {"name": "momentum", "beta1": 0.0})


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("algorithm", "model"), [("fedavg", "conv_bn"), ("scaffold", "mlp"), ("moon", "mlp"), ("lafl_cpn", "conv_bn")]
)
def test_sgd_with_rate_1_gives_the_bits_of_no_optimiser(algorithm: str, model: str) -> None:
    fields: dict[str, Any] = {
        "algorithm": algorithm,
        "model": {"name": model, "projection": 8} if algorithm == "moon" else model,
        "batch_size": 16,
        "num_rounds": 2,
        "edge_rounds": 2,
        "partition": "iid",
        "local_epochs": 1,
    }
    without = tried(**spec_of(None, **fields)).model
    for how in NULL:
        assert flat.same_bits(tried(**spec_of({"cloud": how, "edges": how}, **fields)).model, without)


def test_buffers_are_averaged() -> None:
    """A rate of 0.5 halves the changes of parameters, but batch-norm's statistics are FedAvg's."""
    fields: dict[str, Any] = {"model": "conv_bn", "num_rounds": 1, "local_epochs": 1, "batch_size": 16}
    plain_run, half = [tried(**spec_of(how, **fields)) for how in (None, {"name": "sgd", "lr": 0.5})]
    initial, buffers = plain_run.experiment.initial, plain_run.experiment.buffer_names
    for name in plain_run.model:
        if name in buffers:
            assert torch.equal(half.model[name], plain_run.model[name])
        else:
            changed = half.model[name] - initial[name]
            assert torch.allclose(changed, (plain_run.model[name] - initial[name]) / 2, atol=1e-6)
    assert {name for name in buffers if "running" in name}


@pytest.mark.slow
async def test_moments_survive_a_pause_and_a_restart_of_all_tiers(tmp_path: Path) -> None:
    spec = spec_of({"cloud": ADAM, "edges": YOGI}, edge_rounds=2)
    whole = await ran(spec, agent_devices=(2, 2))
    async with federation(tmp_path, agent_devices=(2, 2)) as fed:
        run_id = await fed.start_and_pause(spec, 2)
        paused = await results_so_far(fed, run_id)
        assert paused.info.rounds == 2
        assert paused.state.moments.second
        await fed.restart(lambda: None)
        await fed.control(run_id, "resume")
        resumed = await ended(fed, run_id)
    assert resumed.info.model_sha256 == whole.info.model_sha256
    assert flat.same_bits(resumed.state.moments.second, whole.state.moments.second)


def accuracy(seed: int, lr: float, how: dict[str, Any] | None) -> float:
    """Returns the accuracy after 15 rounds on digits with two classes a device."""
    fields: dict[str, Any] = {"data": "digits", "model": "mlp", "batch_size": 16, "local_epochs": 1, "num_rounds": 15}
    skewed = {"partition": {"name": "shards", "classes_per_device": 2}, "num_devices": 10, "num_edges": 1}
    experiment = resolved(**spec_of(how, **fields, **skewed, lr=lr, seed=seed))
    ran = ByHooks(experiment)
    for _ in range(15):
        ran.round()
    models.write_state(experiment.model, experiment.algorithm.cloud.models(ran.ctx(15), ran.cloud)["global"])
    found = evaluate(
        experiment.model, experiment.data.test_x, experiment.data.test_y, range(len(experiment.data.test_y))
    )
    return found.n_correct / found.n


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_adam_and_yogi_beat_fedavg_at_its_best_rate(seed: int) -> None:
    """The paper's claim; of the local rates 0.01, 0.03, 0.1 and 0.3, FedAvg does best with the last."""
    fedavg = accuracy(seed, 0.3, None)
    for name in ("adam", "yogi"):
        assert accuracy(seed, 0.1, {"name": name, "lr": 0.1}) > fedavg + 0.02


def test_a_further_wave_of_an_edge_round_takes_the_step_anew() -> None:
    """The mean of a further wave has the updates of those before it, so it starts from the same moments."""
    spec = parse_spec(spec_of({"edges": {"name": "momentum", "beta1": 0.5}}, edge_rounds=2, num_edges=1, model="mlp"))
    experiment = experiment_of(spec.resolved(n_devices=4, n_edges=1))
    hooks: Any = experiment.algorithm.edge
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=0)
    update = Update(delta={name: torch.ones_like(t) for name, t in experiment.initial.items()})
    begun = hooks.begin(ctx, hooks.init(ctx), Broadcast(model=experiment.initial)).state
    once = hooks.aggregate(ctx, begun, update)
    again = hooks.aggregate(ctx.at(wave=1), once, update)
    assert flat.same_bits(again.of.model, once.of.model)
    assert flat.same_bits(again.moments.first, once.moments.first)
    after = hooks.aggregate(ctx.at(edge_round=1), hooks.advance(ctx, again, {}, []).state, update)
    name = next(iter(experiment.initial))
    assert torch.allclose(after.of.model[name] - again.of.model[name], torch.tensor(1.5), atol=1e-6)


def test_a_parameter_that_an_update_lacks_keeps_its_moments() -> None:
    how = ServerAdam(name="adam")
    _, moments = step(how, Moments(), {"a": torch.ones(2), "b": torch.ones(2)}, frozenset())
    moved, after = step(how, moments, {"a": torch.ones(2)}, frozenset())
    assert moved.keys() == {"a"}
    assert torch.equal(after.first["b"], moments.first["b"])
    assert not torch.equal(after.first["a"], moments.first["a"])


def test_a_spec_without_an_optimiser_keeps_its_digest() -> None:
    """A field that is None is neither written nor sent."""
    assert "server_optimizer" not in parse_spec({"server_optimizer": None}).model_dump()
    assert parse_spec({"server_optimizer": "adam"}).digest() != parse_spec({}).digest()
