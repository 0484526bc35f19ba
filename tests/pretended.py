"""A fake GPU: its tensors have another device's name, but their numbers are computed on the CPU.

For torch they are on `PLACE`, a second device of a type that needs no hardware; the first one keeps its behaviour of
shapes without numbers. Torch's rules against mixing devices hold: copies between both are allowed, a CPU tensor without
dimensions can be combined with either, and indices on the CPU select from a tensor on the fake GPU. `numpy()` refuses
such tensors. The bits that a real GPU's kernels give are out of scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shared.core.records import Record
from shared.core.tensor_records import with_tensors
from shared.runtime.compute_thread import ComputeThread
from shared.training.compute_device import ComputeDevice
from shared.wire import codec

PLACE = torch.device("meta", 1)
CPU = torch.device("cpu")
COPIES = frozenset({"copy_", "_to_copy"})
SELECTIONS = frozenset({"index", "index_put_", "_index_put_impl_", "index_put"})
JOINS = frozenset({"cat", "stack"})


class Mixed(AssertionError):
    """A kernel got tensors of both devices."""


class There(Tensor):
    """A tensor on the fake GPU; `here` is the CPU tensor with its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        made: There = Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), dtype=here.dtype, device=PLACE, requires_grad=False
        )
        made.here = here
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def data(self) -> Any:
        """The tensor's data; a module that changes its parameters' layout sets it."""
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: Any) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.here = other.here

    def tolist(self) -> Any:
        """Returns the numbers; torch refuses this for subclasses."""
        return self.here.tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"There({self.here!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(func, args, kwargs or {})


class PretendedGpu(TorchDispatchMode):
    """While it is active, `PLACE` is a device with memory in this thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns a kernel's result, computed on the CPU and placed on the device where a GPU would place it.

    Raises:
        Mixed: the kernel's tensors are on both devices.
    """
    given = [*_tensors(args), *_tensors(kwargs)]
    name = func.overloadpacket.__name__
    theirs = any(isinstance(item, There) for item in given)
    if theirs and name not in COPIES:
        check_unmixed(name, args, given)
    wanted = kwargs.get("device")
    there = theirs if wanted is None else torch.device(wanted) == PLACE
    keywords = {**kwargs, "device": CPU} if there and wanted is not None else kwargs
    found = func(*_mapped(_here, tuple(args)), **_mapped(_here, dict(keywords)))
    if _in_place(name) and not name.startswith("_foreach"):
        return args[0]
    if not there:
        return found
    known = {id(item.here): item for item in given if isinstance(item, There)}
    return _mapped(lambda item: known.get(id(item)) or There(item), found)


def check_unmixed(name: str, args: Sequence[Any], given: Sequence[Tensor]) -> None:
    """Checks torch's rule for the tensors of one kernel.

    Raises:
        Mixed: they are on both devices.
    """
    apart = [item for item in given if not isinstance(item, There)]
    written = args[0] if _in_place(name) else None
    apart = [item for item in apart if item.dim() or item is written or name in JOINS]
    if apart and not (name in SELECTIONS and isinstance(args[0], There) and all(_selects(item) for item in apart)):
        shapes = [f"{'there' if isinstance(item, There) else 'cpu'} {tuple(item.shape)}" for item in given]
        raise Mixed(f"{name} of tensors on two devices: {', '.join(shapes)}")


def _in_place(name: str) -> bool:
    """Whether a kernel works in place: `add_` and `__ilshift__` do, `__lshift__` does not."""
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _selects(item: Tensor) -> bool:
    return item.dtype in (torch.int64, torch.bool)


def _here(item: Tensor) -> Tensor:
    return item.here if isinstance(item, There) else item


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A kernel's arguments or results with other tensors; torch's own `tree_map` takes ten times as long."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(change, item) for item in value)
    return {key: _mapped(change, item) for key, item in value.items()} if type(value) is dict else value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def look(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _mapped(look, value)
    return found


def all_on_cpu(value: Any) -> bool:
    """Whether all tensors of a record, or of values in lists and maps, are on the CPU."""
    found: list[bool] = []

    def look(tensor: Tensor) -> Tensor:
        found.append(isinstance(tensor, There))
        return tensor

    with_tensors(value, look)
    return not any(found)


@contextmanager
def pretending() -> Iterator[list[str]]:
    """Within it `device: cuda` is the fake GPU for all computation of the tiers; encoded records must be on the CPU.

    Yields a list of the types of records that were not.
    """
    run, encode = ComputeThread.run, codec.encode
    left: list[str] = []

    async def run_there(self: ComputeThread, work: Callable[..., Any], *args: Any) -> Any:
        def working() -> Any:
            with PretendedGpu():
                return work(*args)

        return await run(self, working)

    def encode_here(record: Record) -> codec.Body:
        if not all_on_cpu(record):
            left.append(type(record).__name__)
        return encode(record)

    def compute_device(name: str) -> ComputeDevice:
        return ComputeDevice(PLACE if name == "cuda" else CPU)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ComputeThread, "run", run_there)
        patch.setattr(codec, "encode", encode_here)
        for module in ("shared.federation.experiment", "cloud_server.runs.manager", "cloud_server.runs.executor"):
            patch.setattr(f"{module}.compute_device_of", compute_device)
        yield left
