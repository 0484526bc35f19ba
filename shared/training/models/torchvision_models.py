"""The classification models of torchvision by name, with random initial weights; nothing is downloaded."""

from __future__ import annotations

from functools import cache

from torch import Tensor, nn

from shared.core.errors import BadInput, UnknownName
from shared.training.torchvision_compat import torchvision

PREFIX = "torchvision."
"""The start of the names of these models in a spec."""
_NO_AUXILIARY = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
"""Arguments of the models that would otherwise return the logits of further classifiers in training."""


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all models, as in a spec."""
    models = torchvision().models
    return tuple(PREFIX + name for name in models.list_models(module=models))


def check_torchvision_name(name: str) -> None:
    """Checks the name of a model.

    Raises:
        UnknownName: torchvision has no classification model of that name; the message lists those that it has.
    """
    if name not in names():
        raise UnknownName("model", name, list(names()), field="model.name")


def torchvision_model(name: str, n_channels: int, n_outputs: int) -> nn.Module:
    """Returns a model; its tensors have torchvision's names. Grey images are repeated for its three input channels.

    Raises:
        BadInput: the images have neither one nor three channels.
    """
    plain = name.removeprefix(PREFIX)
    if n_channels not in (1, 3):
        raise BadInput(f"{name} takes images of 1 or 3 channels, not of {n_channels}", field="model.name")
    models, options = torchvision().models, _NO_AUXILIARY.get(plain, {})
    made: nn.Module = models.get_model(plain, weights=None, num_classes=n_outputs, **options)
    if n_channels == 1:
        made.register_forward_pre_hook(_in_colour)
    return made


def _in_colour(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].expand(-1, 3, -1, -1), *inputs[1:])
