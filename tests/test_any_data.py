"""Whole runs on data that are no images, and with models that are no plain classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load, save_file
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.federation.experiment import Experiment
from shared.federation.spec_parser import parse_spec
from shared.run_records.rounds import Evaluation
from shared.training import models
from shared.training.data.open_data import open_data
from shared.training.description import Numbers, Sample, Target, Tokens
from tests.shared.algorithms.layouts import Ended, ended, federation

SIZES: dict[str, Any] = {"num_devices": 4, "num_edges": 2, "num_rounds": 3, "batch_size": 8, "lr": 0.2}
RNG = np.random.default_rng


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns a folder with a table, numbers, text, and texts of different lengths."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = RNG(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5]) + 3
    np.savez(folder / "line.npz", train_x=x[:80], train_y=y[:80], test_x=x[80:], test_y=y[80:])
    rows = [f"{a:.3f},{b:.3f},{'ill' if a > b else 'well'},ward{i % 5}" for i, (a, b, _) in enumerate(x)]
    (folder / "wards.csv").write_text("a,b,state,ward\n" + "\n".join(rows), encoding="utf-8")
    text = np.array([(1 + i % 5) for i in range(7 * 41)]).reshape(41, 7)
    mask = np.arange(6) < rng.integers(3, 7, 41)[:, None]
    lines: dict[str, Any] = {"padding": np.array(0)}
    for part, rows_of in (("train", slice(32)), ("test", slice(32, None))):
        lines |= {f"{part}_x": text[rows_of, :-1], f"{part}_y": text[rows_of, 1:], f"{part}_mask": mask[rows_of]}
    np.savez(folder / "lines.npz", **lines)
    return folder


async def done(folder: Path, data: Path, spec: dict[str, Any], agents: tuple[int, ...] = (2, 2)) -> Ended:
    """Runs a spec to its end."""
    async with federation(folder, agent_devices=agents, n_edges=2, common={"data_dir": data}) as fed:
        return await ended(fed, await fed.submit({**SIZES, **spec}))


def scores(run: Ended) -> list[Evaluation]:
    """Returns the scores of the global model on the test set after each round."""
    return [detail.evaluation["global"] for detail in run.rounds if detail.evaluation is not None]


def losses(run: Ended) -> list[float]:
    """Returns the global model's test loss after each round."""
    return [score.loss for score in scores(run) if score.loss is not None]


async def test_a_regression_learns_and_counts_each_sample_once(tmp_path: Path, data: Path) -> None:
    spec = {"data": "line.npz", "num_rounds": 6, "lr": 0.05}
    run = await done(tmp_path / "run", data, spec)
    found = losses(run)
    assert found[-1] < found[0] / 4
    assert run.experiment.data.target == Numbers((1,))
    assert (scores(run)[-1].n, scores(run)[-1].accuracy) == (40, None)


@pytest.mark.whole
async def test_series_of_unequal_lengths_are_told_apart_by_their_period(tmp_path: Path) -> None:
    """The masked series run over time through `cnn_1d`, and columns of names are learnt as classes."""
    rng, found = RNG(0), dict[str, Any]()
    for part, n in (("train", 200), ("test", 80)):
        fast, length = rng.integers(0, 2, n), rng.integers(20, 33, n)
        t, mask = np.arange(32), np.arange(32) < length[:, None]
        period, phase = np.where(fast, 4, 10)[:, None], rng.uniform(0, 6.28, (n, 1))
        x = np.sin(2 * np.pi * t / period + phase) + 0.2 * rng.normal(size=(n, 32))
        found |= {f"{part}_x": x, f"{part}_mask": mask, f"{part}_y": np.array(["slow", "fast"])[fast][:, None]}
    np.savez(tmp_path / "series.npz", **found)
    run = await done(tmp_path / "run", tmp_path, {"data": "series.npz", "model": "cnn_1d", "num_rounds": 6, "lr": 0.1})
    assert run.experiment.data.reading.classes == ("fast", "slow")
    assert (scores(run)[-1].accuracy or 0) > 0.9


@pytest.mark.whole
async def test_pictures_of_sixteen_bits_are_told_apart_in_a_run(tmp_path: Path) -> None:
    rng = RNG(0)
    for label, low in (("dark", 300), ("bright", 1500)):
        (tmp_path / "scans" / label).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(low, low + 1500, (8, 8)).astype(np.uint16)
            Image.fromarray(pixels).save(tmp_path / "scans" / label / f"{number}.{'tif' if number % 2 else 'png'}")
    spec = {"data": {"file": "scans", "value_range": [0, 4095]}, "num_rounds": 4}
    run = await done(tmp_path / "run", tmp_path, spec)
    assert len(np.unique(run.experiment.data.train_x)) > 100
    assert (scores(run)[-1].accuracy or 0) > 0.9


@pytest.mark.whole
async def test_a_table_of_another_dialect_with_gaps_and_times_is_learnt_and_its_reading_kept(tmp_path: Path) -> None:
    """One of the columns that decide is Unix time, which float32 would round to 128 seconds."""
    rng, rows = RNG(0), list[str]()
    for number in range(300):
        time, size = 1_700_000_000 + int(rng.integers(0, 7200)), rng.normal(26, 4)
        state = "late" if time - 1_700_003_600 + 100 * (size - 26) > 0 else "early"
        rows.append(f"p{number};{time};{'NA' if number % 50 == 7 else f'{size:.2f}'.replace('.', ',')};{state}")
    (tmp_path / "t.csv").write_text("id;time;size;state\n" + "\n".join(rows), encoding="utf-8")
    spec = {
        "data": {"file": "t.csv", "target": "state", "missing": "mean", "columns": {"id": "ignore"}},
        "num_rounds": 12,
    }
    run = await done(tmp_path / "run", tmp_path, {**spec, "lr": 0.3, "model": "mlp"})
    assert (scores(run)[-1].accuracy or 0) > 0.93
    inputs, target, *notes = run.experiment.data.reading.lines()
    assert (inputs, target) == ("inputs: time number, size number", "target: state, 2 classes (early, late)")
    assert [note[:24] for note in notes] == [
        "its cells are separated ", "left out, as data.column", "numbers have the decimal", "6 missing cells of size ",
    ]  # fmt: skip


@pytest.mark.whole
async def test_a_regression_in_stacks_gives_the_losses_of_single_devices(tmp_path: Path, data: Path) -> None:
    spec = {"data": "line.npz", "lr": 0.05}
    single = await done(tmp_path / "single", data, spec)
    stacked = await done(tmp_path / "stacked", data, {**spec, "vectorised": {"width": 4}})
    assert losses(stacked) == pytest.approx(losses(single), rel=1e-4)
    for row, other in zip(single.rounds[0].seats, stacked.rounds[0].seats, strict=True):
        assert other.train_loss == pytest.approx(row.train_loss, rel=1e-4)


@pytest.mark.whole
async def test_a_table_is_divided_by_hospital(tmp_path: Path, data: Path) -> None:
    table = {"file": "wards.csv", "target": "state", "group": "ward"}
    run = await done(tmp_path / "run", data, {"data": table, "partition": "by_writer", "num_rounds": 8})
    assert (scores(run)[-1].accuracy or 0) > 0.8
    groups = run.experiment.data.train_group
    assert groups is not None
    owned = [set(groups[seat.train].tolist()) for seat in run.experiment.population.seats]
    assert sum(map(len, owned)) == len(set.union(*owned)) == 5


@pytest.mark.whole
async def test_text_learns_its_next_characters_and_padding_counts_for_nothing(tmp_path: Path, data: Path) -> None:
    spec = {"data": "lines.npz", "model": "char_lstm", "lr": 1.0, "batch_size": 4, "num_rounds": 2}
    run = await done(tmp_path / "run", data, spec)
    target = run.experiment.data.target
    assert isinstance(target, Tokens)
    assert losses(run)[-1] < losses(run)[0]
    assert scores(run)[-1].n == int((run.experiment.data.test_y != 0).sum()) < 9 * 6
    rows = run.rounds[0].seats
    assert sum(row.n_samples for row in rows) == 32
    assert {row.outcome for row in rows} == {"used"}


class Tied(nn.Module):
    """An embedding whose weights are also those of the last layer, and an integer buffer that counts batches."""

    seen: Tensor

    def __init__(self, sample: Sample, target: Target) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sample.vocabulary or 1, 8)
        self.mix = nn.Linear(8, 8)
        self.last = nn.Linear(8, target.n_outputs, bias=False)
        self.last.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, vocabulary)."""
        if self.training:
            self.seen += 1
        logits: Tensor = self.last(torch.tanh(self.mix(self.embedding(x))))
        return logits


@pytest.fixture
def tied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.OF_OTHER_DATA, "tied", Tied)


@pytest.mark.usefixtures("tied")
@pytest.mark.matrix(2)
@pytest.mark.parametrize("algorithm", ["scaffold", "fedavg", "fedprox", "feddyn"])
async def test_tied_weights_are_one_tensor_and_integer_buffers_are_not_averaged(
    algorithm: str, tmp_path: Path, data: Path
) -> None:
    spec = {"data": "lines.npz", "model": "tied", "algorithm": algorithm, "lr": 0.1}
    run = await done(tmp_path / "run", data, spec)
    assert sorted(run.model) == ["embedding.weight", "mix.bias", "mix.weight", "seen"]
    assert run.experiment.tied_names == {"last.weight": "embedding.weight"}
    assert run.model["seen"].item() == 0
    assert losses(run)[-1] < losses(run)[0]


@pytest.mark.whole
@pytest.mark.usefixtures("tied")
async def test_a_file_may_name_tied_weights_once_or_twice_but_not_with_two_values(tmp_path: Path, data: Path) -> None:
    state = {
        "embedding.weight": torch.rand(6, 8),
        "mix.weight": torch.rand(8, 8),
        "mix.bias": torch.rand(8),
        "seen": torch.tensor(5),
    }
    save_file(state | {"last.weight": state["embedding.weight"].clone()}, data / "both.safetensors")
    save_file(state | {"last.weight": torch.rand(6, 8)}, data / "odd.safetensors")
    spec = {"data": "lines.npz", "model": "tied", "lr": 1e-6, "num_rounds": 1, "init": {"file": "both.safetensors"}}
    run = await done(tmp_path / "run", data, spec)
    torch.testing.assert_close(run.model["embedding.weight"], state["embedding.weight"], atol=1e-4, rtol=0)
    async with federation(tmp_path / "odd", agent_devices=(2, 2), n_edges=2, common={"data_dir": data}) as fed:
        run_id = await fed.submit({**SIZES, **spec, "init": {"file": "odd.safetensors"}})
        info = await fed.finish(run_id)
    assert info.status == "failed"
    assert "'last.weight' and 'embedding.weight' are one tensor" in (info.reason or "")


async def test_an_element_beyond_the_bound_of_exact_sums_names_the_field_that_raises_it(
    tmp_path: Path, data: Path
) -> None:
    spec: dict[str, Any] = {"data": "line.npz", "num_rounds": 1, "sum_bounds": {"parameters": 0.001}}
    async with federation(tmp_path / "small", agent_devices=(2, 2), n_edges=2, common={"data_dir": data}) as fed:
        info = await fed.finish(await fed.submit({**SIZES, **spec}))
    assert info.status == "failed"
    assert "at most 0.001 by the spec's sum_bounds.parameters: training diverges" in (info.reason or "")


@pytest.mark.whole
@pytest.mark.parametrize("bounds", [{}, {"buffers": 2.0**40}])
async def test_batch_norm_of_raw_incomes_is_averaged_whatever_its_size(
    bounds: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variances of 1e11; with so many samples no bound once left steps for them."""
    monkeypatch.setitem(models.OF_OTHER_DATA, "bn_first", lambda sample, target: _bn_first(target.n_outputs))
    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    y = rng.integers(0, 2, 20_000)
    x = np.stack([1e6 + 5e5 * (rng.standard_normal(20_000) + y), rng.standard_normal(20_000)], 1).astype(np.float32)
    np.savez(data / "income.npz", train_x=x, train_y=y, test_x=x[:500], test_y=y[:500])
    spec = {"data": "income.npz", "model": "bn_first", "num_rounds": 1, "batch_size": 5000, "lr": 0.1}
    spec |= {"num_devices": 4, "num_edges": 2, "sum_bounds": bounds}
    digests = set[str | None]()
    for layout in ((4,), (1, 1, 1, 1)):
        folder = tmp_path / str(len(layout))
        async with federation(folder, agent_devices=layout, n_edges=2, common={"data_dir": data}) as fed:
            run_id = await fed.submit(spec)
            info = await fed.finish(run_id)
            body = (await fed.client.get(f"/runs/{run_id}/models/global")).content
        assert info.status == "completed", info.reason
        digests.add(info.model_sha256)
        model = load(body)
        seats = experiment(data, **spec).population.seats
        var = np.mean([0.9 + 0.1 * x[seat.train].var(0, ddof=1, dtype=np.float64) for seat in seats], 0)
        assert model["0.running_var"].numpy() == pytest.approx(var, rel=1e-5)
        assert model["0.running_mean"].numpy() == pytest.approx(0.1 * x.mean(0, dtype=np.float64), rel=1e-4, abs=1e-4)
    assert len(digests) == 1


def _bn_first(n: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, n))


@pytest.mark.whole
async def test_a_number_that_is_averaged_has_no_bound_of_parameters(tmp_path: Path, data: Path) -> None:
    """FedNova averages the lengths of visits, here of 200 steps."""
    spec = {"data": "line.npz", "algorithm": "fednova", "num_rounds": 1, "local_epochs": 200, "lr": 0.001}
    async with federation(tmp_path / "long", agent_devices=(2, 2), n_edges=2, common={"data_dir": data}) as fed:
        info = await fed.finish(await fed.submit({**SIZES, **spec, "batch_size": 100}))
    assert info.status == "completed", info.reason


# ---- refusals


def experiment(folder: Path, **spec: Any) -> Experiment:
    parsed = parse_spec({**SIZES, "max_devices": 4, **spec})
    return Experiment(parsed, open_data(parsed.data, data_dir=folder, cache_dir=folder / "cache"))


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"data": "line.npz", "algorithm": "fedser"}, "algorithm.name", "fedser is defined for images"),
        ({"data": "line.npz", "algorithm": "lafl_cpn"}, "algorithm.name", "lafl_cpn is defined for images"),
        ({"data": "line.npz", "algorithm": "fedmix"}, "algorithm.name", "fedmix is defined for targets of classes"),
        ({"data": "lines.npz", "algorithm": "fedmix"}, "algorithm.name", "fedmix is defined for numbers"),
        (
            {"data": "line.npz", "algorithm": {"name": "fedavg", "local": "fedser"}},
            "algorithm.local",
            "fedser is defined for images",
        ),
        ({"data": "line.npz", "augment": "randaugment"}, "augment", "randaugment changes images"),
        ({"data": "lines.npz", "model": "mlp"}, "model.name", "mlp takes numbers"),
        ({"data": "line.npz", "model": "cnn_mnist"}, "model.name", "cnn_mnist takes images"),
        ({"data": "line.npz", "model": "char_lstm"}, "model.name", "char_lstm takes sequences of indices"),
        ({"data": "line.npz", "partition": "dirichlet"}, "partition.name", r"iid, bins of the target \(partition.bins"),
        ({"data": "lines.npz", "partition": "shards"}, "partition.name", "possible are partition: iid$"),
        (
            {"data": "lines.npz", "partition": {"name": "shards", "bins": 3}},
            "partition.bins",
            "bins are cut through one number, the targets of lines are tokens",
        ),
        ({"data": "line.npz", "partition": {"name": "dirichlet", "by": "group"}}, "partition.by", "line has no groups"),
        ({"data": "lines.npz", "model": "char_lstm", "vectorised": {"width": 4}}, "vectorised", "features.embedding"),
        ({"data": "line.npz", "sum_bounds": {"parameters": 2.0**30}}, None, ""),
    ],
)
def test_what_is_not_defined_for_the_data_is_refused_by_field_and_cause(
    data: Path, spec: dict[str, Any], field: str | None, message: str
) -> None:
    if field is None:  # 2^30 leaves steps of 2^-16 for 80 samples
        assert experiment(data, **spec).fixed_point.exponent("") == 53 - 30 - 7
        return
    with pytest.raises(BadInput, match=message) as caught:
        experiment(data, **spec)
    assert caught.value.field == field


class Bare(nn.Module):
    """A model that tells nothing of itself and has no operation that is counted."""

    def __init__(self, sample: Sample, target: Target) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(sample.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) -> (batch, 1)."""
        return (x * self.scale).sum(1, keepdim=True)


class Counted(Bare):
    """A model that says its own operations."""

    training_flops = 18


class Wide(Bare):
    """A model whose outputs do not fit one number."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) -> the same."""
        return x * self.scale


def test_a_model_that_cannot_be_counted_says_its_operations(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in (("bare", Bare), ("counted", Counted), ("wide", Wide)):
        monkeypatch.setitem(models.OF_OTHER_DATA, name, model)
    with pytest.raises(BadInput, match="no operation of bare can be counted: give the model the attribute") as caught:
        experiment(data, data="line.npz", model="bare")
    assert caught.value.field == "model.name"
    assert experiment(data, data="line.npz", model="counted").flops == 18
    with pytest.raises(BadInput, match=r"wide has outputs \(2, 3\) for 2 samples, targets of numbers need"):
        experiment(data, data="line.npz", model="wide")


def test_what_a_method_needs_and_a_model_does_not_tell_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.OF_OTHER_DATA, "counted", Counted)
    with pytest.raises(BadInput, match="moon needs the attribute `features` of the model"):
        experiment(data, data="line.npz", model="counted", algorithm="moon")
    with pytest.raises(BadInput, match=r"model\.projection needs the attribute `features`"):
        experiment(data, data="line.npz", model={"name": "counted", "projection": 4})
    with pytest.raises(BadInput, match="sub-networks need the attribute `head`"):
        _ = experiment(data, data="line.npz", model="counted").units
