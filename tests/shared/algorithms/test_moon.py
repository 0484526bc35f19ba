"""MOON: Li, He and Song, algorithm 1, losses (3) and (4)."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.by_hooks import ByHooks
from shared.algorithms.moon import contrastive
from shared.core.tensor_records import TensorMap
from shared.core.tensors import add
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.data.dataset import as_batch
from shared.training.loop import batches, train
from shared.wire import codec
from tests.federation import PassOn
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import agents_of, body_of, four, resolved, run, tried


def spec_of(mu: float, **more: Any) -> dict[str, Any]:
    return {
        **four(),
        "algorithm": {"name": "moon", "params": {"mu": mu}},
        "partition": {"name": "shards", "classes_per_device": 2},
        "num_rounds": 3,
        **more,
    }


def model_of(experiment: Experiment, state: TensorMap) -> Any:
    """Returns a separate model with this state, which is never trained."""
    found = models.build(experiment.spec.model.name, experiment.data.sample, experiment.data.target, 0)
    models.write_state(found, state)
    return found.eval()


def local(
    experiment: Experiment, seat: int, round_no: int, start: TensorMap, last: TensorMap | None, mu: float
) -> TensorMap:
    """Trains a client on the formula of (4); it shares only the training loop."""
    spec, data, model = experiment.spec, experiment.data, copy.deepcopy(experiment.model)
    models.write_state(model, start)
    glob, prev = model_of(experiment, start), model_of(experiment, last or start)

    def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
        return found

    def objective(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z, logits = net.features(x), net(x)  # type: ignore[operator]
        to_glob, to_prev = torch.exp(cosine(z, glob.features(x)) / 0.5), torch.exp(cosine(z, prev.features(x)) / 0.5)
        pulled = -torch.log(to_glob / (to_glob + to_prev)).mean()
        return functional.cross_entropy(logits, y) + (mu * pulled if last else 0.0), logits

    stream = torch.Generator().manual_seed(flat.stream(spec.seed, f"seat {seat}", round_no, 0, 0, "batches"))
    chosen = experiment.population.seats[seat].train
    drawn = batches(data.train_x, data.train_y, chosen, batch_size=spec.batch_size, generator=stream, epochs=1)
    train(model, drawn, lr=spec.lr, objective=objective)
    return models.read_state(model)


def test_contrastive_loss_of_known_vectors() -> None:
    """Orthogonal to the previous model and parallel to the global one: log(1 + e^-2) at T = 0.5."""
    z, along, across = torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    assert contrastive(z, along, across, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert contrastive(z, across, along, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)))
    assert contrastive(z, along, along, 0.1).item() == pytest.approx(math.log(2))


def test_rounds_are_those_of_algorithm_1() -> None:
    done = tried(**spec_of(5.0))
    experiment, w = done.experiment, done.experiment.initial
    last: dict[int, TensorMap] = {}
    for round_no in (1, 2, 3):
        trained = {seat: local(experiment, seat, round_no, w, last.get(seat), 5.0) for seat in range(4)}
        sizes = [len(seat.train) for seat in experiment.population.seats]
        w, last = flat.averaged(w, list(trained.values()), sizes, sum(sizes)), trained
    assert flat.distance(done.model, w) < 1e-5
    assert flat.distance(done.model, flat.fedavg(experiment, 3)) > 1e-3


def test_the_first_round_is_fedavg_bit_for_bit() -> None:
    done = tried(**spec_of(5.0, num_rounds=1))
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 1))


def test_reference_models_are_not_changed() -> None:
    """Batch-norm's statistics after two rounds are those of one pass over each batch, not of three."""
    experiment = resolved(**spec_of(1.0, model="conv_bn", num_edges=1, batch_size=30))
    ran = ByHooks(experiment)
    for _ in range(2):
        done = ran.round()
    assert {local.model["features.1.num_batches_tracked"].item() for local in done.values() if local.model} == {2}


class Sent:
    """Records the updates that agents send."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.deltas = experiment, list[tuple[int, TensorMap]]()

    async def __call__(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        response = await pass_on()
        if agents_of(request) and request.url.path == "/visits":
            body, response = await body_of(response)
            answer = codec.decode(self.experiment.wire_types.visit_answer, body, model=self.experiment.shapes)
            self.deltas += [(item.seat, item.update.delta) for item in answer.uploads.contributions]
        return response


@pytest.mark.slow
async def test_larger_mu_pulls_representations_towards_the_global_model_and_away_from_the_previous_one(
    tmp_path: Path,
) -> None:
    """The paper's claim with two classes per device and many epochs: l_con of a client's images after training."""
    found = []
    for mu in (1.0, 5.0):
        spec = spec_of(mu, num_rounds=2, num_edges=1, local_epochs=10, batch_size=16)
        sent = Sent(experiment := resolved(**spec))
        await run(tmp_path, spec, agent_devices=(1,) * 4, n_edges=1, tamper=sent)
        first, second = dict(sent.deltas[:4]), dict(sent.deltas[4:])
        assert first.keys() == second.keys() == {0, 1, 2, 3}
        mean = flat.exact_mean(list(first.values()), [60] * 4, 240)
        received, losses = add(experiment.initial, mean), []
        for seat in experiment.population.seats:
            x = as_batch(experiment.data.train_x[seat.train])
            states = (add(received, second[seat.number]), received, add(experiment.initial, first[seat.number]))
            z, z_glob, z_prev = (model_of(experiment, state).features(x) for state in states)
            losses.append(contrastive(z, z_glob, z_prev, 0.5).item())
        found.append(sum(losses) / len(losses))
    weak, strong = found
    assert strong < weak - 0.05
    assert weak < math.log(2) - 0.1
