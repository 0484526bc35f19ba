"""What a module consists of: its submodules, parameters and state, looked up once where nothing can change them.

A walk through a module's tree takes longer than a step of a small network, and a task would take ten of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Parts:
    """The parts of a module, in its own order; each is looked up when it is first asked for.

    Args:
        model: the module, which is not kept alive.
        fixed: whether no code of a user can change it, nor what it does in its `train`.
    """

    def __init__(self, model: nn.Module, *, fixed: bool = False) -> None:
        self._model, self._fixed = ref(model), fixed
        self._laid_out = False
        self._found: dict[Any, Any] = {}

    @property
    def model(self) -> nn.Module:
        """The module itself.

        Raises:
            ReferenceError: it is gone.
        """
        found = self._model()
        if found is None:
            raise ReferenceError("the module of these parts is gone")
        return found

    @cached_property
    def submodules(self) -> tuple[nn.Module, ...]:
        """All modules within the module, without itself, which would then never be freed."""
        return tuple(self.model.modules())[1:]

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """All parameters, a tied one once."""
        return tuple(self.model.parameters())

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All parameters and buffers, those included that are not saved."""
        return tuple(chain(self.parameters, self.model.buffers()))

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """The parameters and buffers that are saved, by name; a tied tensor once, by the first of its names."""
        found: dict[int, str] = {}
        state = self.model.state_dict(keep_vars=True)
        return {name: tensor for name, tensor in state.items() if found.setdefault(id(tensor), name) == name}

    @cached_property
    def is_convolutional(self) -> bool:
        """Whether a module within it is a convolution of images."""
        return any(isinstance(module, nn.Conv2d) for module in (self.model, *self.submodules))

    def once(self, look: Callable[[nn.Module], T]) -> T:
        """Returns what a function finds in the module; it is called once."""
        if look not in self._found:
            self._found[look] = look(self.model)
        found: T = self._found[look]
        return found

    def set_training(self, training: bool) -> None:
        """Puts all modules into training or evaluation mode."""
        model = self.model
        if not self._fixed or any(module.training is not training for module in (model, *self.submodules)):
            model.train(training)

    def lay_out(self) -> None:
        """Lays out the parameters channels-last, in place."""
        if not self._laid_out:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._laid_out = True


_fixed: WeakKeyDictionary[nn.Module, Parts] = WeakKeyDictionary()


def parts_of(model: nn.Module) -> Parts:
    """Returns the parts of a module as they are now."""
    return _fixed.get(model) or Parts(model)


def fix_parts(model: nn.Module) -> None:
    """Notes that the parts of a module stay what they are: no code of a user is in it or gets it."""
    _fixed[model] = Parts(model, fixed=True)
