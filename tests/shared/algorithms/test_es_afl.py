"""ES-AFL: sub-networks from chromosomes, averaging by position, the search, and FedAvg where nothing is pruned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.by_hooks import ByHooks
from shared.algorithms._evolution import Params, Strategy, after_trial, covariance_of, run_trial, split_samples
from shared.algorithms.es_afl import Change, Choice
from shared.federation.aggregation import Accumulator, mean_of
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import DeviceHooks, Local, Trainer, default_local, starting_model
from shared.federation.messages import Contribution
from shared.federation.registry import load_algorithm
from shared.federation.visits.trainer import trainer_for
from shared.federation.visits.uploads import _sum_is_smaller
from shared.training.models import build, read_state
from shared.training.subnetworks.pruning import genes_of, kept_units, magnitude_mask, rates_of
from shared.training.subnetworks.unit_graph import units_of
from shared.wire import codec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import resolved

MODEL = "cnn_6_16"


def experiment_with(params: dict[str, Any] | None = None, **more: Any) -> Experiment:
    """Returns an experiment of three clients of handwritten digits at one edge, with different numbers of samples."""
    spec = {
        "algorithm": {"name": "es_afl", "params": params or {}},
        "data": {"name": "digits", "n_train": 200, "n_test": 30},
        "partition": {"name": "iid", "quantity_skew": 0.5},
        "model": MODEL,
        "num_devices": 3,
        "num_edges": 1,
        "batch_size": 16,
        "lr": 0.1,
    }
    return resolved(**{**spec, **more})


# ---- chromosomes


@pytest.mark.parametrize(("model", "n_genes"), [("vgg_mnist", 8), ("vgg_cifar10", 10), ("mobilenet_femnist", 10)])
def test_convolutions_have_one_gene_and_linear_layers_two_except_the_last(model: str, n_genes: int) -> None:
    genes = genes_of(units_of(build(model, (1, 8, 8), 10, seed=0), (1, 8, 8)))
    assert len(genes) == n_genes
    assert [gene.kind for gene in genes[-5:]] == ["units", "weights", "units", "weights", "weights"]
    assert genes[-1].name == "head"
    assert all(gene.kind == "units" for gene in genes[:-5])


# ---- the reduction


class TrainingShare(DeviceHooks):
    """FedAvg's device, training on the same samples as ES-AFL."""

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start = starting_model(state, message)
        training, _ = split_samples(ctx, trainer, Params().validation)
        return default_local(ctx, start, trainer.fit(ctx, start, samples=training))


@pytest.mark.parametrize("model", ["conv_bn", MODEL])
def test_without_pruning_it_is_fedavg_on_the_same_samples_bit_for_bit(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ByHooks(experiment_with({"start": 0, "sigma": 0}, model=model))
    monkeypatch.setattr(
        "shared.federation.experiment.load_algorithm",
        lambda name: replace(load_algorithm(name), device=TrainingShare()),
    )
    theirs = ByHooks(experiment_with(model=model, algorithm="fedavg"))
    for _ in range(2):
        mine.round()
        theirs.round()
        assert flat.same_bits(mine.cloud.model, theirs.cloud.model)
    assert flat.distance(mine.cloud.model, mine.experiment.initial) > 0.01


# ---- a round


@pytest.mark.parametrize("model", ["conv_bn", MODEL])
def test_supernet_is_the_mean_per_position_over_the_clients_that_kept_it(model: str) -> None:
    """Each sub-network is put at its positions by numpy's `ix_`, without pruned linear weights, and averaged."""
    run = ByHooks(experiment_with({"start": 0.5, "sigma": 0.3}, model=model))
    units = run.experiment.units
    for _ in range(2):
        before, state = run.cloud, run.cloud.model
        ctx, done = run.ctx(run.round_no + 1), {}
        pairs = load_algorithm("es_afl").cloud.broadcast(ctx, before, 0, list(run.seats.values())).pairs
        done = run.round()
        sums = {name: np.zeros(tensor.shape) for name, tensor in state.items()}
        weights = {name: np.zeros(tensor.shape) for name, tensor in state.items()}
        for seat, local in done.items():
            client = f"device-{seat}"
            pair, here = pairs[client], ctx.at(edge=0, seat=seat)
            chromosome = pair.child if local.update.choices[client].child else pair.parent  # type: ignore[union-attr]
            trainer = trainer_for(run.experiment, run._task(run.round_no), run.seats[seat].train, run.seats[seat].test)
            counts = trainer.importance(state, split_samples(here, trainer, here.params.validation)[1])
            kept = kept_units(counts, rates_of(units, chromosome, "units"))
            for name, tensor in (local.model or {}).items():
                places = [list(range(n)) for n in state[name].shape]
                for axis in units.axes.get(name, ()):
                    chosen = kept[axis.group].tolist()
                    places[axis.dim] = [i * axis.span + j for i in chosen for j in range(axis.span)]
                assert tensor.shape == tuple(map(len, places)), name
                n, value = len(run.seats[seat].train), tensor.numpy().astype(float)
                is_linear = value.ndim == 2
                there = n * (value != 0 if is_linear else np.ones(value.shape))
                weights[name][np.ix_(*places)] += there
                sums[name][np.ix_(*places)] += there * value
        n_alone = 0
        for name, tensor in state.items():
            if not tensor.is_floating_point():
                continue
            mean = np.where(weights[name] > 0, sums[name] / np.maximum(weights[name], 1), tensor.numpy())
            assert np.allclose(run.cloud.model[name].numpy(), mean, atol=1e-6), name
            in_no_client = torch.from_numpy(weights[name] == 0)
            assert torch.equal(run.cloud.model[name][in_no_client], tensor[in_no_client])
            n_alone += int(in_no_client.sum())
        assert n_alone > 10


def test_one_edge_and_three_merge_to_the_same_supernet() -> None:
    run = ByHooks(experiment_with({"start": 0.4}))
    updates = {seat: local.update for seat, local in run.round().items() if local.update is not None}
    kind, fixed_point = run.algorithm.update, run.experiment.fixed_point
    one, cloud = Accumulator(kind, fixed_point), Accumulator(kind, fixed_point)
    for seat, update in updates.items():
        n, edge = len(run.seats[seat].train), Accumulator(kind, fixed_point)
        one.add(update, n)
        edge.add(update, n)
        cloud.merge(edge.result())
    near, far = mean_of(one.result(), kind, fixed_point), mean_of(cloud.result(), kind, fixed_point)
    assert flat.same_bits(near.delta, far.delta)  # type: ignore[union-attr]
    assert far.choices.keys() == {"device-0", "device-1", "device-2"}  # type: ignore[union-attr]


def test_search_continues_from_the_winner() -> None:
    """The cloud's state after each round follows from the state before it and the choices."""
    run = ByHooks(experiment_with({"sigma": 0.3}))
    n_won, n_lost = 0, 0
    for _ in range(4):
        before, ctx = run.cloud, run.ctx(run.round_no + 1)
        pairs = run.algorithm.cloud.broadcast(ctx, before, 0, list(run.seats.values())).pairs
        done = run.round()
        after = run.cloud
        for seat, local in done.items():
            client = f"device-{seat}"
            won = local.update.choices[client].child  # type: ignore[union-attr]
            n_won, n_lost = n_won + won, n_lost + (not won)
            found = after.searches[client]
            assert found.parent == (pairs[client].child if won else pairs[client].parent)
            if client in before.searches:
                expected = after_trial(before.searches[client], won, Strategy())
                assert (found.parent, found.path, found.sigma) == (expected.parent, expected.path, expected.sigma)
                assert found.won == expected.won
            elif won:  # its first trial: the first child, from a path of length 0
                move = (np.array(pairs[client].child) - pairs[client].parent) / 0.3
                assert found.won == pytest.approx(tuple(move))
                assert found.path == pytest.approx(tuple(0.6 * move))  # C is I; sqrt(1 - 0.8^2)
            else:
                assert (found.won, found.path, found.sigma) == ((), (0.0,) * 7, 0.3)
            assert found.child != found.parent
            assert np.all((np.array(found.child) >= 0) & (np.array(found.child) <= 0.95))
        covariance = covariance_of([after.searches[c] for c in sorted(after.searches)], 7, Strategy())
        assert np.array_equal(after.covariance, covariance)
        assert len({search.child for search in after.searches.values()}) == 3
    assert n_won
    assert n_lost


def test_winner_is_the_fitter_or_among_equals_the_smaller() -> None:
    """With a step size of 0.3 the chromosomes differ; both trials are repeated by hand."""
    run = ByHooks(experiment_with({"sigma": 0.3}))
    ctx = run.ctx(1)
    pairs = run.algorithm.cloud.broadcast(ctx, run.cloud, 0, list(run.seats.values())).pairs
    for seat, visit in run.visits().items():
        here, client = ctx.at(edge=0, seat=seat), f"device-{seat}"
        trainer = trainer_for(run.experiment, run._task(1), run.seats[seat].train, run.seats[seat].test)
        parts = split_samples(here, trainer, here.params.validation)
        counts = trainer.importance(run.cloud.model, parts[1])
        chromosomes = (pairs[client].parent, pairs[client].child)
        parent, child = (run_trial(here, run.cloud.model, c, counts, trainer, parts) for c in chromosomes)
        sizes = [sum(int(t.count_nonzero()) for t in one.model.values() if t.dim() > 1) for one in (parent, child)]
        fitter = (child.score.n_correct, -sizes[1]) > (parent.score.n_correct, -sizes[0])
        local = visit()
        choice: Choice = local.update.choices[client]  # type: ignore[union-attr]
        assert choice.child == fitter
        assert sum(choice.n_weights.values()) == sizes[int(fitter)]
        operations = choice.multiply_adds
        assert operations == run.experiment.units.multiply_adds(local.model or {})
        whole = run.experiment.units.training_flops(run.cloud.model)
        trained = sum(len(parts[0]) * run.experiment.units.training_flops(one.model) for one in (parent, child)) / whole
        assert trained < local.n_trained < trained + len(parts[1]) * 1.2 + 1  # type: ignore[operator]


# ---- what is sent


@cache
def cut_to(model: str, rate: float, n_pruned: float = 0.0) -> tuple[Change, int]:
    """Returns an update of an untrained sub-network, and its number of kept values."""
    made = build(model, (1, 28, 28), 10, seed=0)
    units, state = units_of(made, (1, 28, 28)), read_state(made)
    counts = {group: torch.ones(n) for group, n in units.groups.items()}
    kept = kept_units(counts, dict.fromkeys(units.groups, rate))
    part = {name: tensor for name, tensor in units.cut(state, kept).items() if tensor.is_floating_point()}
    stays = {name: torch.ones_like(tensor) for name, tensor in part.items()}
    for layer in units.layers:
        if layer.kind == "linear":
            stays[f"{layer.name}.weight"] = magnitude_mask(part[f"{layer.name}.weight"], n_pruned).float()
    delta = units.spread({name: tensor * stays[name] for name, tensor in part.items()}, state, kept)
    return Change(delta=delta, mask=units.spread(stays, state, kept)), int(sum(m.sum() for m in stays.values()))


def test_sub_network_of_half_width_is_sent_as_its_own_values_and_a_few_hundred_bytes() -> None:
    update, n_values = cut_to("vgg_mnist", 0.5)
    weights = 32 * 9 + 64 * 32 * 9 + 128 * 64 * 9 + 512 * 2048 + 512 * 512 + 10 * 512
    assert n_values == weights + 5 * (32 + 64 + 128) + 512 + 512 + 10  # biases, and four tensors of batch-norm
    dimensions = 2 * (64 + 1 + 6 + 128 + 64 + 6 + 256 + 128 + 6) + 4 * 448 + 4096 + 4 * 1024 + 10 + 1024 + 1024
    size = codec.size(update)
    assert size - 4 * n_values < dimensions / 8 + 24 * 230  # 24 tensors: names, shapes, values and places in the header
    assert size < 0.26 * 4 * sum(tensor.numel() for tensor in update.delta.values())


def test_single_pruned_weights_cost_a_bit_each() -> None:
    update, n_values = cut_to("vgg_mnist", 0.5, 0.9)
    in_linear = 512 * 2048 + 512 * 512 + 10 * 512
    whole, n_whole = cut_to("vgg_mnist", 0.5)  # with the same header and places by dimension
    n_bytes = codec.size(update) - 4 * n_values - (codec.size(whole) - 4 * n_whole)
    assert n_bytes == pytest.approx(in_linear / 8, abs=500)  # less where a column is empty
    assert n_values < 0.2 * in_linear + 100_000


def test_updates_are_summed_if_that_is_smaller() -> None:
    """A client sends 4 bytes per value and few for positions; a sum takes 16 per position that any client kept."""
    update, _ = cut_to("cnn_6_16", 0.5)
    apart = [Contribution[Any](seat=seat, n_samples=9, update=update) for seat in range(20)]
    assert [_sum_is_smaller(apart[:n], n) for n in (1, 2, 8, 20)] == [False, False, False, True]
    whole, _ = cut_to("cnn_6_16", 0.0)
    apart = [Contribution[Any](seat=seat, n_samples=9, update=whole) for seat in range(8)]
    assert [_sum_is_smaller(apart[:n], n) for n in (1, 3, 5)] == [False, False, True]


# ---- validation samples


def test_validation_samples_are_redrawn_and_not_trained_on() -> None:
    experiment = experiment_with()
    seat, found = experiment.seat(0), []
    for round_no in (1, 2):
        ctx = experiment.ctx(phase="train", round_no=round_no, n_clients=3, edge=0).at(seat=0)
        trainer = trainer_for(experiment, ByHooks(experiment)._task(1), seat.train, seat.test)
        training, validation = split_samples(ctx, trainer, ctx.params.validation)
        assert len(validation) == len(seat.train) // 10
        assert sorted([*training.indices, *validation.indices]) == sorted(seat.train)
        found.append(sorted(validation.indices))
    assert found[0] != found[1]


def test_clients_with_too_few_samples_to_validate_keep_their_parent() -> None:
    """With one sample there are no validation samples; test samples are never used for validation."""
    run = ByHooks(experiment_with({"sigma": 0.3, "start": 0.5}, data={"name": "digits", "n_train": 4, "n_test": 30}))
    done = run.round()
    seat = next(seat for seat in done if len(run.seats[seat].train) == 1)
    trainer = trainer_for(run.experiment, run._task(1), run.seats[seat].train, run.seats[seat].test)
    assert len(run.seats[seat].test)
    assert (
        trainer.evaluate(
            run.cloud.model, split_samples(run.ctx(1).at(edge=0, seat=seat), trainer, Params().validation)[1]
        ).n
        == 0
    )
    assert done[seat].figures["fitness"] == 0


def test_enough_samples_for_batch_norm_remain_for_training() -> None:
    experiment = experiment_with(
        model="cnn_digits", data={"name": "digits", "n_train": 6, "n_test": 30}, partition="iid"
    )
    assert experiment.least_batch == 2
    for n in (1, 2, 3):
        seat = experiment.seat(0)
        ctx = experiment.ctx(phase="train", round_no=1, n_clients=3, edge=0).at(seat=0)
        trainer = trainer_for(experiment, ByHooks(experiment)._task(1), np.arange(n), seat.test)
        training, validation = split_samples(ctx, trainer, ctx.params.validation)
        assert (len(training), len(validation)) == {1: (1, 0), 2: (2, 0), 3: (2, 1)}[n]


def test_record_has_the_sizes_of_sub_networks_and_of_the_supernet() -> None:
    run = ByHooks(experiment_with({"start": 0.5}))
    ctx, locals_ = run.ctx(1), run.round()
    found, units = run.algorithm.cloud.figures(ctx, run.cloud), run.experiment.units
    choices = [choice for local in locals_.values() for choice in local.update.choices.values()]  # type: ignore[union-attr]
    for name, whole in (("n_weights", units.n_weights), ("multiply_adds", units.multiply_adds)):
        assert found["supernet"][name] == whole(run.experiment.initial)
        for layer, mean in found[name].items():
            assert mean == pytest.approx(sum(getattr(choice, name)[layer] for choice in choices) / 3)
            assert mean < found["supernet"][name][layer]
