"""A GPU that is pretended: tensors with another device's name whose numbers are computed on the CPU all the same.

To torch they lie on `PLACE`, by its number a second one of that device that needs no hardware; the first stays what it
is, shapes without numbers. They cannot be mixed with the CPU's, by torch's rules: copies go between both, a CPU tensor
without dimensions goes with either, and positions on the CPU select from a tensor there. `numpy()` refuses them. What
bits a GPU's own kernels give is no concern of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from shared.core.records import Record
from shared.core.tensor_records import with_tensors
from shared.runtime.worker import Worker
from shared.training.compute_device import ComputeDevice
from shared.wire import codec

PLACE = torch.device("meta", 1)
CPU = torch.device("cpu")
COPIES = frozenset({"copy_", "_to_copy"})
SELECTIONS = frozenset({"index", "index_put_", "_index_put_impl_", "index_put"})
JOINS = frozenset({"cat", "stack"})


class Mixed(AssertionError):
    """A kernel was given tensors of both."""


class There(Tensor):
    """A tensor on the pretended GPU; `here` holds its numbers."""

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
        """As of any tensor; a module that changes its parameters' layout sets it."""
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: Any) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.here = other.here

    def tolist(self) -> Any:
        """Its numbers, which torch refuses to give of any subclass."""
        return self.here.tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"There({self.here!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(func, args, kwargs or {})


class PretendedGpu(TorchDispatchMode):
    """While it lasts, in its thread, `PLACE` is a device with memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a kernel gives, computed on the CPU; on which device that lies, as on a GPU.

    Raises:
        Mixed: the kernel's tensors lie on both.
    """
    given = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
    name = func.overloadpacket.__name__
    theirs = any(isinstance(item, There) for item in given)
    if theirs and name not in COPIES:
        check_unmixed(name, args, given)
    wanted = kwargs.get("device")
    there = theirs if wanted is None else torch.device(wanted) == PLACE
    told = {**kwargs, "device": CPU} if there and wanted is not None else kwargs
    found = func(*tree_map(_here, tuple(args)), **tree_map(_here, dict(told)))
    if _in_place(name) and not name.startswith("_foreach"):
        return args[0]
    if not there:
        return found
    known = {id(item.here): item for item in given if isinstance(item, There)}
    return tree_map(lambda item: known.get(id(item)) or There(item) if isinstance(item, Tensor) else item, found)


def check_unmixed(name: str, args: Sequence[Any], given: Sequence[Tensor]) -> None:
    """Torch's rule for the tensors of one kernel.

    Raises:
        Mixed: they lie on both devices.
    """
    apart = [item for item in given if not isinstance(item, There)]
    written = args[0] if _in_place(name) else None
    apart = [item for item in apart if item.dim() or item is written or name in JOINS]
    if apart and not (name in SELECTIONS and isinstance(args[0], There) and all(_selects(item) for item in apart)):
        shapes = [f"{'there' if isinstance(item, There) else 'cpu'} {tuple(item.shape)}" for item in given]
        raise Mixed(f"{name} of tensors on two devices: {', '.join(shapes)}")


def _in_place(name: str) -> bool:
    """`add_` is, `__ilshift__` too; `__lshift__` is not."""
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _selects(item: Tensor) -> bool:
    return item.dtype in (torch.int64, torch.bool)


def _here(item: Any) -> Any:
    return item.here if isinstance(item, There) else item


def nothing_there(value: Any) -> bool:
    """Whether all tensors of a record, or of values in lists and maps, lie on the CPU."""
    found: list[bool] = []

    def look(tensor: Tensor) -> Tensor:
        found.append(isinstance(tensor, There))
        return tensor

    with_tensors(value, look)
    return not any(found)


@contextmanager
def pretending() -> Iterator[list[str]]:
    """In here `device: cuda` is the pretended GPU, in all that the tiers compute; what they encode must have left it.

    Yields the types of records that had not.
    """
    run, encode = Worker.run, codec.encode
    left: list[str] = []

    async def run_there(self: Worker, work: Callable[..., Any], *args: Any) -> Any:
        def working() -> Any:
            with PretendedGpu():
                return work(*args)

        return await run(self, working)

    def encode_here(record: Record) -> codec.Body:
        if not nothing_there(record):
            left.append(type(record).__name__)
        return encode(record)

    def compute_device(name: str) -> ComputeDevice:
        return ComputeDevice(PLACE if name == "cuda" else CPU)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "run", run_there)
        patch.setattr(codec, "encode", encode_here)
        for room in ("shared.federation.experiment", "cloud_server.runs.manager", "cloud_server.runs.executor"):
            patch.setattr(f"{room}.compute_device_of", compute_device)
        yield left
