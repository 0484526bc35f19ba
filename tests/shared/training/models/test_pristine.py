"""A module is as it was made before each use, whatever a client has left behind in it."""

import functools
import random
import threading
import types
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from shared.core.errors import BadInput
from shared.training.models import Pristine, check_features, copied, read_state, write_state

COUNT = 0
HELD: dict[str, list[float]] = {"seen": []}


def doubled(x):
    HELD["seen"].append(float(x.sum()))
    return 2 * sum(HELD["seen"])


class Slots:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Net(nn.Module):
    """Its outputs depend on how often, and on what, it was called: in each way that `how` can say."""

    calls = 0
    fresh: ClassVar[int]  # set by its first call
    seen: ClassVar[list[int]] = []
    body: Any
    spare: Any
    mean: Any
    extra: Any
    items: list[Any]
    many: tuple[Any, ...]

    def __init__(self, how: Callable[["Net", torch.Tensor], object]):
        super().__init__()
        self.body, self.spare = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.how, self.number, self.items, self.state = how, 0.0, [], None
        self.held = {"a": [torch.zeros(1), {"b": torch.ones(2)}], "empty": {}}
        self.many = (deque([1.0], maxlen=3), set(), defaultdict(int), np.zeros(2), bytearray(2), Slots())
        self.plain = types.SimpleNamespace(n=0, inner=types.SimpleNamespace(n=0))
        self.torch_draws = torch.Generator().manual_seed(1)
        self.numpy_draws, self.old_draws = np.random.default_rng(1), np.random.RandomState(1)
        self.python_draws = random.Random(1)
        self.bound, self.partial = self.add_one, functools.partial(Net.add_one, self)
        told = 0.0

        def tell():
            nonlocal told
            told += 1
            return told

        self.tell, self.own = tell, lambda: self.number + len(self.items)

    def add_one(self):
        self.number += 1
        return self.number

    def forward(self, x):
        extra = self.how(self, x)
        return self.spare(self.body(x).relu()) + (0.0 if extra is None else extra)


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class Ways:
    """Each keeps or changes something at a call of a net on `x`; returns what is added to its outputs."""

    def number(net: Any, x):
        net.number += float(x.mean())
        return net.number

    def hidden_buffer(net: Any, x):
        net.hidden = net.hidden * 0.5 + x.detach().mean()
        return net.hidden.sum()

    def hidden_in_place(net: Any, x):
        net.hidden += x.detach().mean()
        return net.hidden.sum()

    def behind_the_back(net: Any, x):
        net.hidden.data.add_(1)
        return net.hidden.sum()

    def grown(net: Any, x):
        net.hidden = torch.cat([net.hidden, torch.ones(1)])
        return net.hidden.sum()

    def recurrent(net: Any, x):
        net.state = x.detach() if net.state is None else net.state + x.detach()[:1]
        return net.state.sum()

    def listed(net: Any, x):
        net.items.append(x.detach())
        return net.own() + sum(each.sum() for each in net.items)

    def nested(net: Any, x):
        net.held["a"][1]["b"].add_(1)
        net.held["a"][0] += x.detach().sum()
        net.held["empty"][len(net.held["empty"])] = 1
        return net.held["a"][1]["b"].sum() + net.held["a"][0] + len(net.held["empty"])

    def containers(net: Any, x):
        line, known, counts, array, data, slots = net.many
        line.append(float(x.sum()))
        known.add(len(known))
        counts["n"] += 1
        array += 1
        data[0] += 1
        slots.n += 1
        return sum(line) + len(known) + counts["n"] + float(array.sum()) + data[0] + slots.n

    def objects(net: Any, x):
        net.plain.n += 1
        net.plain.inner.n += 2
        net.plain.more = getattr(net.plain, "more", 0) + 1
        return net.plain.n + net.plain.inner.n + net.plain.more

    def streams(net: Any, x):
        drawn = torch.rand((), generator=net.torch_draws) + net.numpy_draws.random() + net.old_draws.rand()
        return drawn + net.python_draws.random()

    def in_closures(net: Any, x):
        return net.tell() + net.bound() + net.partial()

    def of_the_class(net: Any, x):
        Net.calls += 1
        Net.seen.append(1)
        Net.fresh = getattr(Net, "fresh", 0) + 1
        return Net.calls + len(Net.seen) + Net.fresh

    def of_the_file(net: Any, x):
        global COUNT
        COUNT += 1
        return COUNT + doubled(x.detach())

    def defaults(net: Any, x, kept=[]):  # noqa: B006
        kept.append(1)
        return len(kept)

    def on_a_parameter(net: Any, x):
        net.body.weight.n = getattr(net.body.weight, "n", 0) + 1
        return net.body.weight.n

    def hooks(net: Any, x):
        net.body.register_forward_hook(lambda module, inputs, out: out * 0.9)

    def gradient_hooks(net: Any, x):
        if net.body.weight.requires_grad and net.training:
            net.body.weight.register_hook(lambda gradient: gradient * 0.9)

    def freezes(net: Any, x):
        net.spare.weight.requires_grad_(False)

    def replaced(net: Any, x):
        net.spare = nn.Identity()

    def another_parameter(net: Any, x):
        net.body.weight = nn.Parameter(net.body.weight.detach() * 0.9)

    def another_class(net: Any, x):
        net.spare.__class__ = Shifted

    def deleted(net: Any, x):
        found = getattr(net, "items", None)
        if found is not None:
            del net.items
        return 0.0 if found is None else 1.0

    def no_state(net: Any, x):
        return None


WAYS = [each for each in vars(Ways).values() if isinstance(each, types.FunctionType)]
CLIENTS = {name: torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(seed)) for seed, name in enumerate("ab")}


def visit(net: nn.Module, start, client: str):
    """What a client gets to see: its outputs in training and evaluation, and its gradients."""
    write_state(net, start)
    seen = []
    for x in CLIENTS[client]:
        net.train()
        net(x).square().sum().backward()
        seen += [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.eval()
        seen.append(net(x).detach())
    return seen


@pytest.mark.parametrize("how", WAYS, ids=lambda how: how.__name__)
def test_no_client_sees_what_another_one_left_behind(how):
    torch.manual_seed(0)
    net = Net(how)
    start, pristine = read_state(net), Pristine(net)
    alone = {client: visit(pristine.restored(), start, client) for client in "ba"}
    after = {client: visit(pristine.restored(), start, client) for client in "ab"}
    for client in "ab":
        assert len(alone[client]) == len(after[client])
        assert all(map(torch.equal, alone[client], after[client]))
    if how not in (Ways.no_state, Ways.replaced):  # they do see it if nothing is put back
        dirty = visit(net, start, "a")
        assert len(dirty) != len(alone["a"]) or not all(map(torch.equal, dirty, alone["a"]))


def test_modes_and_flags_are_as_they_were_made():
    net = Net(Ways.no_state)
    net.spare.eval()
    net.spare.bias.requires_grad_(False)
    pristine = Pristine(net)
    net.train().requires_grad_(True)
    found: Any = pristine.restored()
    assert (found.training, found.body.training, found.spare.training) == (True, True, False)
    assert [name for name, p in found.named_parameters() if not p.requires_grad] == ["spare.bias"]
    with torch.no_grad():
        net.body.weight.fill_(3.0)
        net.mean.fill_(4.0)
    found = pristine.restored()
    assert (found.body.weight == 3).all(), "the values of the state are left alone"
    assert (found.mean == 4).all()


def test_an_iterator_is_refused_by_name():
    net = Net(Ways.no_state)
    net.plain.inner.rates = iter([0.1, 0.2])
    with pytest.raises(BadInput, match=r"Net\.plain\.inner\.rates of the model is an iterator \(list_iterator\)"):
        Pristine(net)


def test_modules_of_torch_alone_are_not_looked_at_again():
    net: Any = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    pristine, watched = Pristine(net), Pristine(net, watched=True)
    net.extra = 1
    assert pristine.restored().extra == 1
    assert not hasattr(watched.restored(), "extra")


class Counting(nn.Module):
    """Features that are smaller at each call, and a head; with `closed` a function refers to it from outside."""

    n: int

    def __init__(self, *, closed: bool = False, lock: Any = None):
        super().__init__()
        self.features, self.head, self.n, self.lock = nn.Linear(3, 4), nn.Linear(4, 2), 0, lock
        self.features.register_forward_hook(self.seen)
        if closed:
            self.head.register_forward_hook(lambda *_: self.seen(None, None, torch.zeros(1)) and None)

    def seen(self, _: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return out / self.n

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.features(x))


def test_a_copy_of_a_module_shares_nothing_with_it():
    model = Counting()
    check_features(model, torch.ones(2, 3), "a method")
    made: Any = copied(model, "a method makes use")
    made(torch.ones(2, 3))
    assert (made.n, model.n) == (1, 0)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"closed": True}, "Counting has a function that refers to the module from outside"),
        ({"lock": threading.Lock()}, "Counting cannot be copied: TypeError: cannot pickle '_thread.lock'"),
    ],
)
def test_a_module_whose_copies_would_share_something_is_refused(how: dict[str, Any], cause: str):
    with pytest.raises(BadInput, match=rf"a method makes use of copies of the model, but {cause}"):
        check_features(Counting(**how), torch.ones(2, 3), "a method")
