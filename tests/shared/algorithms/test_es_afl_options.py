"""ES-AFL's options: statistics retaken, ties of each client's own, and the head's bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.by_hooks import ByHooks
from shared.algorithms._evolution import Params, orders_of, passes
from shared.core.errors import WireError
from shared.core.tensor_records import TensorMap
from shared.federation.hooks import without
from shared.training import models
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import ran
from tests.shared.algorithms.test_es_afl import MODEL, experiment_with
from tests.shared.algorithms.test_es_afl_tiers import same_state, spec_of

ALL = {"statistics": "retaken", "ties": "random", "head_bias": "fixed"}


def of(params: dict[str, Any], model: str = "conv_bn") -> ByHooks:
    """Returns a run of one round, and one more in which statistics are retaken."""
    return ByHooks(experiment_with(params, model=model, num_rounds=1))


# ---- statistics


def first_statistics(of_run: ByHooks, model: TensorMap) -> tuple[str, Any, Any]:
    """Returns the name of the first batch-norm, and mean and variance of its inputs over all training samples."""
    scratch, data = of_run.experiment.model, of_run.experiment.data
    models.write_state(scratch, model)
    seen: list[torch.Tensor] = []
    name, layer = next((n, m) for n, m in scratch.named_modules() if isinstance(m, torch.nn.BatchNorm2d))
    handle = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    scratch.eval()
    with torch.no_grad():
        for seat in of_run.seats.values():
            scratch(data.encode(data.train_x[seat.train]))
    handle.remove()
    values = torch.cat(seen).transpose(0, 1).flatten(1).double().numpy()
    return name, values.mean(1), values.var(1)


def test_retaken_statistics_are_those_of_the_supernet_on_all_training_samples() -> None:
    mine, theirs = of({"statistics": "retaken", "start": 0.5}), of({"start": 0.5})
    statistics = [name for name in mine.experiment.initial if "running" in name]
    assert statistics
    for round_no in (1, 2):
        received, searches = mine.cloud.model, mine.cloud.searches
        name, mean, variance = first_statistics(mine, received)
        mine.round()
        np.testing.assert_allclose(mine.cloud.model[f"{name}.running_mean"], mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mine.cloud.model[f"{name}.running_var"], variance, rtol=1e-4)
        figures = mine.algorithm.cloud.figures(mine.ctx(round_no), mine.cloud)
        assert figures["statistics"] == "retaken"
        if round_no == 1:
            theirs.round()
            assert flat.same_bits(
                without(mine.cloud.model, statistics), without(theirs.cloud.model, statistics)
            )  # the sub-networks were the same
            assert not flat.same_bits(mine.cloud.model, theirs.cloud.model)
        else:
            assert mine.ctx(round_no).phase == "statistics"
            assert flat.same_bits(without(mine.cloud.model, statistics), without(received, statistics))
            assert mine.cloud.searches == searches
            assert figures == {"statistics": "retaken"}


def test_without_batch_norm_nothing_is_retaken() -> None:
    mine, theirs = of({"statistics": "retaken"}, MODEL), of({}, MODEL)
    for each in (mine, theirs):
        each.round()
    mine.round()
    assert flat.same_bits(mine.cloud.model, theirs.cloud.model)


def test_choices_are_refused_while_statistics_are_retaken() -> None:
    mine = of({"statistics": "retaken"})
    (sent, *_) = [local.update for local in mine.round().values()]
    with pytest.raises(WireError, match="choices: none are sent in the phase statistics"):
        mine.algorithm.check(mine.ctx(2), sent)


def test_a_pass_over_all_samples_is_expected() -> None:
    more, less = passes(Params(statistics="retaken")), passes(Params())
    assert more.extra_per_sample - less.extra_per_sample == pytest.approx(1 / 3)


# ---- ties


@pytest.mark.parametrize("ties", ["first", "random"])
def test_clients_keep_the_same_channels_at_the_start_unless_ties_are_broken_by_each(ties: str) -> None:
    mine = of({"ties": ties, "start": 0.5, "sigma": 0})
    initial = mine.experiment.initial
    channels = [layer for layer in mine.experiment.units.layers if layer.scale]
    assert all(torch.equal(initial[layer.scale], torch.ones_like(initial[layer.scale])) for layer in channels)  # type: ignore[index]
    sent = mine.round()
    figures = mine.algorithm.cloud.figures(mine.ctx(1), mine.cloud)["units_trained"]
    assert figures.keys() == mine.experiment.units.groups.keys()
    for layer in channels:
        group, n = str(layer.group), mine.experiment.units.groups[str(layer.group)]
        union = set()
        for seat, local in sent.items():
            order = orders_of(mine.ctx(1).at(edge=0, seat=seat))[group].tolist() if ties == "random" else [*range(n)]
            due = sorted(order[: n - n // 2])
            mask = local.update.mask[f"{layer.name}.weight"].flatten(1)  # type: ignore[union-attr]
            assert mask.any(1).nonzero().flatten().tolist() == due
            union |= {*due}
        assert figures[group] == pytest.approx(len(union) / n)
        assert (len(union) > n - n // 2) == (ties == "random")


def test_a_clients_order_is_the_same_in_all_rounds_and_another_than_other_clients() -> None:
    mine = of({"ties": "random"})
    one, later, other = (
        orders_of(mine.ctx(round_no).at(edge=edge, seat=seat))
        for round_no, edge, seat in ((1, 0, 0), (2, 1, 0), (1, 0, 1))
    )
    assert flat.same_bits(one, later)
    assert not flat.same_bits(one, other)
    assert all(sorted(order.tolist()) == [*range(len(order))] for order in one.values())


def test_share_of_units_ever_trained_never_falls() -> None:
    mine = ByHooks(experiment_with({"ties": "random", "start": 0.6, "sigma": 0.3}, num_rounds=3))
    ever = {group: np.zeros(n, bool) for group, n in mine.experiment.units.groups.items()}
    for round_no in (1, 2, 3):
        for local in mine.round().values():
            for layer in mine.experiment.units.layers:
                if layer.group:
                    mask = local.update.mask[f"{layer.name}.weight"]  # type: ignore[union-attr]
                    ever[layer.group] |= mask.flatten(1).any(1).numpy()
        figures = mine.algorithm.cloud.figures(mine.ctx(round_no), mine.cloud)["units_trained"]
        assert figures == pytest.approx({group: each.mean() for group, each in ever.items()})


# ---- the head's bias


def test_fixed_bias_is_trained_by_no_client() -> None:
    mine = of({"head_bias": "fixed"})
    initial = mine.experiment.initial["head.bias"]
    for local in mine.round().values():
        assert local.model is not None
        assert torch.equal(local.model["head.bias"], initial)
    assert torch.equal(mine.cloud.model["head.bias"], initial)
    assert not torch.equal(mine.cloud.model["head.weight"], mine.experiment.initial["head.weight"])


# ---- through the tiers


@pytest.mark.slow
async def test_options_give_the_same_bits_in_any_layout() -> None:
    spec = spec_of(algorithm={"name": "es_afl", "params": {"sigma": 0.3, **ALL}}, num_rounds=2)
    one = await ran(spec, n_edges=1, agent_devices=(5,))
    apart = await ran({**spec, "num_edges": 3}, n_edges=3, agent_devices=(1, 2, 2), order=(2, 0, 1))
    assert same_state(one, apart)
    assert flat.same_bits(one.state.trained, apart.state.trained)
    assert [detail.phase for detail in one.rounds] == ["train", "train", "statistics"]
    cloud = [detail.figures["cloud"] for detail in apart.rounds]
    assert all(figures["statistics"] == "retaken" for figures in cloud)
    assert all(0 < share <= 1 for figures in cloud[:2] for share in figures["units_trained"].values())
    assert {row.outcome for row in one.rounds[2].seats} == {"collected", "evaluated"}
