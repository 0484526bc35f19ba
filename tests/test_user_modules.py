"""Modules of a user through the three tiers: clients never see each other's state, and what is wrong is said first."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from shared.core.errors import BadInput
from shared.federation.messages import Task
from shared.federation.plan import plan_of
from shared.federation.trial import try_run
from shared.federation.visits.trainer import trainer_for
from shared.wire import codec
from strata.checks.run import checked
from tests.federation import small_spec
from tests.shared.algorithms.layouts import Recorder, federation, resolved, run
from tests.user_packages import Write

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


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("model", OF_THE_MODULE)
async def test_neither_agents_nor_their_number_change_a_bit_of_a_model_with_hidden_state(
    model: str, tmp_path: Path, user_package: Write
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
    return resolved(**({"data": data, "num_devices": 2, "num_edges": 1, "num_rounds": 1} | spec))


@pytest.mark.parametrize("model", [*OF_THE_MODULE, *OF_THE_PROCESS])
def test_two_clients_have_the_same_results_in_both_orders(model: str, user_package: Write) -> None:
    user_package(MODELS)
    found: list[dict[Any, Any]] = [{}, {}]
    for ends, order in zip(found, ((0, 1), (1, 0)), strict=True):
        run = experiment(model=model)
        for seat in map(run.population.seat, order):
            trainer = trainer_for(run, Task(batch_size=8), seat.train, seat.test, seat=seat.number)
            ctx = run.ctx(phase="train", round_no=1, n_clients=2, edge=0).at(seat=seat.number)
            run.device.seed(ctx.seed("torch"), all_generators=run.draws_freely)
            fit = trainer.fit(ctx, run.initial)
            ends[seat.number] = trainer.evaluate(fit.model), codec.digest_of(save(fit.model))
    assert found[0] == found[1]


@pytest.mark.whole
def test_a_model_that_depends_on_the_order_of_clients_is_refused_by_name(
    user_package: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_A_TEST", "1")
    package = user_package(MODELS)
    with pytest.raises(BadInput, match=r"outside: gru.weight_ih_l0 of a client depends on which client"):
        try_run(experiment(model="outside"))
    causes = {(found.name, found.cause) for found in checked(package) if found.check == "no client sees another's"}
    assert {name for name, cause in causes if cause} == {"outside"}
    assert "of a client depends on which client was trained before it" in next(c for _, c in causes if c)


def test_a_stack_whose_devices_depend_on_each_other_is_refused(user_package: Write) -> None:
    user_package(MODELS)
    try_run(experiment(model="mixing"))
    with pytest.raises(BadInput, match=r"vectorised: mixing cannot train many devices at once: net.1.weight"):
        try_run(experiment(model="mixing", vectorised={"width": 2}))
    try_run(experiment(model="mlp", vectorised={"width": 2}))


def test_default_generators_are_left_as_they_were(user_package: Write) -> None:
    user_package(MODELS)
    found = experiment(model="always_drops")
    before = torch.get_rng_state()
    with found.evaluating():
        first = torch.rand(())
    with found.evaluating():
        assert torch.equal(torch.rand(()), first)
    assert torch.equal(torch.get_rng_state(), before)


RAISES = """
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from strata.plugins import (
    Classifier, DataSource, Loss, Metric, ModelFactory, Partitioner, Record, SelectionPolicy
)

Pair = namedtuple("Pair", "aux logits")
STEPS = []


class How(Record):
    how: str = "plain"


class Net(nn.Module):
    def __init__(self, n, k, how):
        super().__init__()
        self.how, self.net = how, nn.Linear(n, k)
        if how == "lazy":
            self.more = nn.LazyLinear(3)

    def forward(self, x):
        z = self.net(x.flatten(1))
        if self.how == "key":
            raise KeyError("my own words")  # raised: pass
        if self.how == "large" and self.training and len(x) > 2:
            assert x is None, "my own words"  # raised: training
        if self.how == "later" and self.training and len(x) > 2:
            STEPS.append(1)
            assert len(STEPS) <= 3, "my own words"  # raised: later
        if self.how == "exits":
            raise SystemExit("my own words")  # raised: exit
        if self.how == "grows" and not hasattr(self, "places"):
            self.register_buffer("places", torch.zeros(3))
        if self.how == "grows_later" and len(x) > 2:
            self.places = nn.Parameter(torch.zeros(3))
        return {
            "dict": {"loss": None, "logits": z, "hidden": x}, "one": {"y": z}, "object": SimpleNamespace(logits=z),
            "tuple": (z, x), "nested": ((z, x), x), "named": Pair(x, z), "sometimes": (z, x) if self.training else z,
            "several": {"a": z, "b": x}, "nothing": {"a": 1}, "none": None,
        }.get(self.how, z)


def build(s, t, p):
    if p.how == "build":
        raise KeyError("my own words")  # raised: build
    if p.how == "values":  # which torch's meta device has not
        torch.linspace(0, 0.1, 3).tolist()
    return Net(64, t.n_outputs, p.how)


def each(z, y):
    return nn.functional.cross_entropy(z, y, reduction="none")


def bad(*args):
    raise ValueError("my own words")  # raised: bad


NET = ModelFactory(name="net", description="d", params=How, build=build)
DATA = DataSource(name="bad_data", description="d", arrays=bad)
PART = Partitioner(name="bad_part", description="d", assign=bad)
LOSS = Loss(name="bad_loss", description="d", kinds=frozenset({"classes"}), each=bad)
IN_PLACE = Loss(
    name="in_place", description="d", kinds=frozenset({"classes"}), each=lambda p, z, y: each(z, y.clamp_(0, 3))
)
DRAWS = Loss(
    name="draws", description="d", kinds=frozenset({"classes"}),
    each=lambda p, z, y: each(z, y) * np.random.rand() * torch.rand(()),
)
STATE = Metric(
    name="bad_state", description="d", kinds=frozenset({"classes"}), state=bad, value=bad, largest=lambda p, n: (1,)
)
VALUE = Metric(
    name="bad_value", description="d", kinds=frozenset({"classes"}), value=bad, largest=lambda p, n: (1,),
    state=lambda p, z, y: torch.zeros(1, dtype=torch.int64),
)
SELECT = SelectionPolicy(name="bad_select", description="d", choose=bad)
"""


def line_of(where: str) -> int:
    return next(at for at, line in enumerate(RAISES.splitlines(), 1) if line.endswith(f"# raised: {where}"))


def net(how: str) -> dict[str, Any]:
    return {"model": {"name": "net", "params": {"how": how}}}


@pytest.mark.parametrize(
    ("spec", "error", "where"),
    [
        (net("key"), "KeyError: 'my own words'", "pass"),
        (net("large"), "AssertionError: my own words", "training"),
        (net("exits"), "SystemExit: my own words", "exit"),
        (net("build"), "KeyError: 'my own words'", "build"),
        ({"partition": "bad_part"}, "ValueError: my own words", "bad"),
        ({"loss": "bad_loss"}, "ValueError: my own words", "bad"),
        ({"metrics": ["accuracy", "bad_state"]}, "ValueError: my own words", "bad"),
        ({"metrics": ["accuracy", "bad_value"]}, "ValueError: my own words", "bad"),
        ({"data": {"name": "bad_data"}}, "ValueError: my own words", "bad"),
    ],
)
def test_code_of_a_user_that_raises_is_refused_before_the_run_with_its_line(
    spec: dict[str, Any], error: str, where: str, user_package: Write
) -> None:
    package = user_package(RAISES)
    with pytest.raises(BadInput) as found:
        try_run(experiment(**spec))
    assert error in found.value.detail
    assert f"{package}/__init__.py:{line_of(where)}, in " in found.value.detail


@pytest.mark.parametrize(
    ("spec", "where", "asks_agents"),
    [(net("large"), "training", False), (net("later"), "later", True), ({"select": "bad_select"}, "bad", False)],
)
async def test_a_run_whose_user_code_raises_fails_with_its_line_before_any_visit_if_the_cloud_can_try_it(
    spec: dict[str, Any], where: str, asks_agents: bool, tmp_path: Path, user_package: Write
) -> None:
    package = user_package(RAISES)
    async with federation(tmp_path, n_edges=1, agent_devices=(2,)) as fed:
        fed.router.tamper = orders = Recorder()
        info = await fed.finish(await fed.submit(small_spec(num_devices=2, num_edges=1, **spec)))
    assert (info.status, bool(orders.orders)) == ("failed", asks_agents)
    assert "my own words" in str(info.reason)
    assert f"{package}/__init__.py:{line_of(where)}, in " in str(info.reason)


PARTITIONS = """
import numpy as np
from strata.plugins import Partitioner, Record


class How(Record):
    how: str = "none"


def assign(task, params):
    n, k = len(task.labels), task.n_clients
    even = np.array_split(np.arange(n), k)
    return {
        "none": None, "nones": [None] * k, "floats": [part / 1 for part in even], "masks": [np.ones(n, bool)] * k,
        "empty": [[], *even[1:]], "lists": [part.tolist() for part in even], "generator": (part for part in even),
    }[params.how]


PART = Partitioner(name="mine", description="d", params=How, assign=assign)
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("none", "mine returns None, not a list of positions for each client"),
        ("nones", "mine: part 0 is None, not a list of positions"),
        ("floats", "mine: part 0 is float64 of shape"),
        ("masks", "mine: part 0 is bool of shape"),
        ("empty", "mine leaves 1 of 2 clients without a sample"),
        ("lists", ""),
        ("generator", ""),
    ],
)
def test_what_a_partition_returns_is_checked_by_name(how: str, message: str, user_package: Write) -> None:
    user_package(PARTITIONS)
    spec = {"partition": {"name": "mine", "how": how}}
    if not message:
        assert [seat.n_train for seat in experiment(**spec).population.seats] == [30, 30]
        return
    with pytest.raises(BadInput, match=message):
        list(experiment(**spec).population.seats)


def test_a_data_source_that_returns_no_arrays_is_named(user_package: Write) -> None:
    made = "DataSource(name='no_data', description='d', arrays=lambda: None)"
    user_package(f"from strata.plugins import DataSource\nDATA = {made}\n")
    with pytest.raises(BadInput, match="the data source no_data returns a NoneType, not a dictionary of arrays"):
        experiment(data={"name": "no_data"})


@pytest.mark.parametrize("how", ["dict", "one", "object", "tuple", "nested", "named", "sometimes", "values"])
def test_outputs_in_a_structure_are_taken_in_training_evaluation_and_counting(how: str, user_package: Write) -> None:
    user_package(RAISES)
    plain, other = experiment(**net("plain")), experiment(**net(how))
    try_run(other)
    assert plain.flops == other.flops
    ends = []
    for each in (plain, other):
        seat = each.population.seat(0)
        trainer = trainer_for(each, Task(batch_size=8), seat.train, seat.test, seat=0)
        fit = trainer.fit(each.ctx(phase="train", round_no=1, n_clients=2, edge=0).at(seat=0), each.initial)
        ends.append((codec.digest_of(save(fit.model)), trainer.evaluate(fit.model)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("several", "the model net returns a dict of a, b: several tensors, none of them called `logits`"),
        ("nothing", "the model net returns a dict of a: no tensor of outputs"),
        ("none", "the model net returns a NoneType: no tensor of outputs"),
        ("lazy", "more.weight of the model net has no shape before a forward pass"),
        ("grows", "places of the model net appears, goes or has another shape after a forward pass"),
        ("grows_later", "places of the model net appears, goes or has another shape in training"),
    ],
)
def test_a_module_that_cannot_work_is_refused_by_name(how: str, cause: str, user_package: Write) -> None:
    user_package(RAISES)
    with pytest.raises(BadInput) as found:
        try_run(experiment(**net(how)))
    assert found.value.detail.startswith(cause)


ODD = """
import warnings

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal
from strata.plugins import ModelFactory, Record


class How(Record):
    how: str = "plain"


class Slotted:
    __slots__ = ("logits", "hidden")

    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


class Net(nn.Module):
    def __init__(self, n, k, how):
        super().__init__()
        self.how, self.net = how, nn.Linear(n, k)
        if how == "orthogonal":  # which has other tensors on torch's meta device
            self.net = orthogonal(self.net)
        if how == "expanded":
            self.offsets = nn.Parameter(torch.zeros(1).expand(k))
        if how == "nan":
            nn.init.constant_(self.net.bias, float("nan"))
        if how == "infinite":
            self.register_buffer("mask", torch.full((k, k), float("-inf")).triu(1))
        if how == "infinite_apart":
            self.register_buffer("mask", torch.full((k, k), float("-inf")).triu(1), persistent=False)
        if how == "views":
            self.shift = torch.zeros(1).expand(n)
            with torch.inference_mode():
                self.scale = torch.ones(())
        if how == "dropped":
            self.register_state_dict_post_hook(lambda module, state, prefix, _: state.__delitem__(f"{prefix}net.bias"))
        if how == "loose":
            self.hidden, self.scale = [nn.Linear(n, n)], torch.ones((), requires_grad=True)

    def forward(self, x):
        x = x.flatten(1)
        if self.how == "views":
            x = x * self.scale.clone() + self.shift
            self.shift.as_strided((1,), (1,)).add_(1)
            with torch.inference_mode():
                self.scale.mul_(2)
        if self.how == "loose":
            x = self.hidden[0](x) * self.scale
        if self.how == "settings":
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(True)
            torch.set_num_threads(2)
            warnings.simplefilter("error", ImportWarning)
        z = self.net(x)
        return {"detached": z.detach(), "slots": Slotted(z, x)}.get(self.how, z)


def build(s, t, p):
    if p.how == "scripted":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, t.n_outputs)))
    return Net(64, t.n_outputs, p.how)


NET = ModelFactory(name="net", description="d", params=How, build=build)
"""


@pytest.mark.matrix(2)
@pytest.mark.parametrize("how", ["views", "orthogonal", "slots", "infinite_apart"])
async def test_a_module_of_any_kind_trains(how: str, tmp_path: Path, user_package: Write) -> None:
    user_package(ODD)
    spec = small_spec(num_devices=2, num_edges=1, **net(how))
    one, other = [await run(tmp_path, spec, n_edges=1, agent_devices=layout) for layout in ((2,), (1, 1))]
    assert codec.encode(one.state).digest() == codec.encode(other.state).digest()


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("scripted", "the model net is TorchScript: build the module"),
        ("expanded", "offsets of the model net has one element at several places"),
        ("dropped", "the parameter net.bias of the model net is not in its state under that name"),
        ("nan", "the parameter net.bias of the model net begins with NaN or infinity"),
        ("infinite", "the buffer mask of the model net holds NaN or infinity, but float buffers are averaged"),
        ("detached", "no parameter of the model can be trained: its outputs are detached"),
    ],
)
def test_a_module_that_would_fail_in_its_first_round_is_refused_by_name(
    how: str, cause: str, user_package: Write
) -> None:
    user_package(ODD)
    with pytest.raises(BadInput) as found:
        try_run(experiment(**net(how)))
    assert found.value.detail.startswith(cause)


def test_a_plan_names_what_looks_like_parameters_but_is_not_registered(user_package: Write) -> None:
    user_package(ODD)
    (line,) = [line for line in plan_of(experiment(**net("loose"))) if line.startswith("not registered")]
    assert line.startswith("not registered, so neither trained nor sent: hidden[0].bias, hidden[0].weight, scale (")
    assert not [line for line in plan_of(experiment(**net("views"))) if line.startswith("not registered")]


def test_a_plan_says_which_outputs_of_a_module_are_taken(user_package: Write) -> None:
    user_package(RAISES)
    lines = {how: plan_of(experiment(**net(how))) for how in ("plain", "dict", "object")}
    places = {how: [line for line in found if line.startswith("outputs of the model")] for how, found in lines.items()}
    assert places["plain"] == []
    assert places["dict"] == ["outputs of the model: ['logits'] of dict"]
    assert len(places["object"]) == 1


SOFTMAX = """
import torch
from torch import nn
from strata.plugins import Loss, ModelFactory, Record


class How(Record):
    how: str = "plain"


def build(sample, target, params):
    last = {"softmax": [nn.Softmax(1)], "log_softmax": [nn.LogSoftmax(1)], "plain": []}[params.how]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *last)


NET = ModelFactory(name="net", description="d", params=How, build=build)


def nll(params, chances, y):
    return -chances.gather(1, y[:, None])[:, 0].log()


NLL = Loss(name="nll", description="d", kinds=frozenset({"classes"}), each=nll)
"""


@pytest.mark.parametrize(
    ("how", "loss", "warned"),
    [
        ("softmax", {}, True),
        ("softmax", {"loss": "focal"}, True),
        ("softmax", {"loss": "nll"}, False),
        ("log_softmax", {}, False),
        ("plain", {}, False),
    ],
)
def test_a_plan_warns_of_a_softmax_before_a_loss_that_takes_logits(
    how: str, loss: dict[str, str], warned: bool, user_package: Write
) -> None:
    user_package(SOFTMAX)
    lines = [line for line in plan_of(experiment(**net(how), **loss)) if "probabilities, as of softmax" in line]
    assert len(lines) == warned


def test_settings_that_a_module_changes_are_put_back(user_package: Write) -> None:
    user_package(ODD)
    before = (torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters))
    try_run(experiment(**net("settings")))
    assert (torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters)) == before


def test_a_package_that_changes_the_default_dtype_is_refused_each_time(user_package: Write) -> None:
    user_package("import torch; torch.set_default_dtype(torch.float64)")
    for _ in range(2):
        with pytest.raises(BadInput, match="sets torch's default dtype to float64, for all runs"):
            experiment(model="mlp")
        assert torch.get_default_dtype() == torch.float32


HOOKS = """
import asyncio
import sys

from strata.plugins import Algorithm, CloudHooks, DeviceHooks, EdgeHooks, Record


class Params(Record):
    at: str = ""
    what: str = ""


def act(ctx, at):
    if ctx.params.at == at and ctx.params.what != "type":
        if ctx.params.what == "exit":
            sys.exit("my own words")
        raise {  # raised: here
            "kill": KeyboardInterrupt, "stop": StopIteration, "cancel": asyncio.CancelledError, "close": GeneratorExit,
        }[ctx.params.what]("my own words")


class Cloud(CloudHooks):
    def aggregate(self, ctx, state, update):
        act(ctx, "cloud")
        return None if ctx.params.at == "cloud" else super().aggregate(ctx, state, update)


class Edge(EdgeHooks):
    def select(self, ctx, state, seats, view):
        act(ctx, "edge")
        return 3 if ctx.params.at == "edge" else super().select(ctx, state, seats, view)


class Device(DeviceHooks):
    def training(self, ctx, state, message):
        act(ctx, "device")
        return message if ctx.params.at == "device" else super().training(ctx, state, message)


ALGORITHM = Algorithm(name="raising", paper="none", params=Params, cloud=Cloud(), edge=Edge(), device=Device())
"""


@pytest.mark.whole
@pytest.mark.matrix(2)
@pytest.mark.parametrize("what", ["exit", "cancel", "kill", "stop", "close"])
async def test_hooks_end_a_run_whatever_they_raise_and_no_process(
    what: str, tmp_path: Path, user_package: Write
) -> None:
    package = user_package(HOOKS)
    async with federation(tmp_path, n_edges=1, agent_devices=(2,)) as fed:
        for at in ("cloud", "edge", "device"):
            algorithm = {"name": "raising", "params": {"at": at, "what": what}}
            info = await fed.finish(await fed.submit(small_spec(num_devices=2, num_edges=1, algorithm=algorithm)))
            assert info.status == "failed"
            assert f"at the {at} of raising failed: " in str(info.reason)
            assert "my own words" in str(info.reason)
            assert f"{package}/__init__.py:" in str(info.reason)
        assert (await fed.run(small_spec(num_devices=2, num_edges=1))).status == "completed"


async def test_a_hook_that_returns_something_else_is_named(tmp_path: Path, user_package: Write) -> None:
    user_package(HOOKS)
    causes = {
        "cloud": "the hook aggregate at the cloud of raising returns NoneType, not GlobalModel",
        "edge": "the hook select at the edge of raising returns int, not Collection",
        "device": "the hook training at the device of raising returns Broadcast, not Training",
    }
    async with federation(tmp_path, n_edges=1, agent_devices=(2,)) as fed:
        for at, cause in causes.items():
            algorithm = {"name": "raising", "params": {"at": at, "what": "type"}}
            info = await fed.run(small_spec(num_devices=2, num_edges=1, algorithm=algorithm))
            assert info.status == "failed"
            assert cause in str(info.reason)
