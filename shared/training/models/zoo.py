"""The models by name, and building them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn

from shared.core.errors import BadInput, UserCodeFailed
from shared.core.plugins import Kind, Value
from shared.core.randomness import seeded_generators
from shared.core.user_code import user_code
from shared.training.description import Classes, Sample, Target
from shared.training.models.axes import check_image
from shared.training.models.classifier import (
    Classifier,
    Layer,
    Shape,
    features_of,
    head_of,
    layers,
    own_state,
)
from shared.training.models.dtypes import check_dtypes, with_own_dtype
from shared.training.models.forward_order import forward_order
from shared.training.models.networks import cnn_120_84, cnn_digits, cnn_mnist, mlp, mobilenet_v1
from shared.training.models.pristine import Pristine, check_features
from shared.training.models.residual import resnet
from shared.training.models.sequences import autoencoder, char_lstm, cnn_1d
from shared.training.models.supernets import mobilenet_femnist, vgg_cifar10, vgg_mnist
from shared.training.models.torchvision_models import PREFIX, check_torchvision_name, torchvision_model
from shared.training.models.user_modules import outputs_in, taken

OF_ANY_WIDTH = {"vgg_mnist": vgg_mnist, "vgg_cifar10": vgg_cifar10, "mobilenet_femnist": mobilenet_femnist}
"""The models that can be built with a share of the units of every hidden layer."""
MODELS: dict[str, Callable[[Shape, int], Classifier]] = {
    "mlp": mlp,
    "cnn_mnist": cnn_mnist,
    "cnn_cifar10": cnn_mnist,
    "cnn_6_12": cnn_120_84((6, 12)),
    "cnn_6_16": cnn_120_84((6, 16)),
    "cnn_digits": cnn_digits,
    "resnet18": resnet(18),
    "resnet34": resnet(34),
    "resnet50": resnet(50),
    "mobilenet_v1": mobilenet_v1,
    **OF_ANY_WIDTH,
}
"""The models of images by name; `cnn_cifar10` is `cnn_mnist` under the name it has on 3x32x32 (878,538 parameters)."""
OF_OTHER_DATA: dict[str, Callable[[Sample, Target], nn.Module]] = {
    "char_lstm": char_lstm,
    "cnn_1d": cnn_1d,
    "autoencoder": autoencoder,
}
"""The models of other data by name; each says of which."""
OF_ANY_SHAPE = frozenset({"mlp"})
"""The models of images that take numbers of any shape, such as the rows of a table."""


@dataclass(frozen=True, kw_only=True)
class ModelFactory(Value):
    """A model of a plug-in.

    Attributes:
        build: returns the module for samples, a target and, with `params`, their values. Its initial weights are drawn
            from torch's default generator, which is seeded. A module of attributes `features` and `head` serves all
            methods, as `Classifier` does.
    """

    build: Callable[..., nn.Module]


def _built_in() -> Mapping[str, Any]:
    return {**MODELS, **OF_OTHER_DATA}


def _described(name: str) -> Value:
    return Value(name=name, description=(_built_in()[name].__doc__ or "").partition("\n")[0])


MODEL_FACTORIES: Kind[ModelFactory, Value] = Kind(ModelFactory, "model", "model.name", _built_in, _described)


def check_name(name: str, width: float = 1.0, params: Mapping[str, Any] | None = None) -> None:
    """Checks a model's name, width and parameters.

    Raises:
        UnknownName: no model has that name; the message lists the known names.
        BadInput: the model cannot be built with another width, or a parameter is wrong.
    """
    if name.startswith(PREFIX):
        check_torchvision_name(name)
        if params:
            raise BadInput(f"model.params: {name} has no parameters", field="model.params")
    else:
        MODEL_FACTORIES.get(name).parse(params or {}, "model.params")
    if width != 1 and name not in OF_ANY_WIDTH:
        raise BadInput(f"{name} has width 1 only; width goes with {', '.join(OF_ANY_WIDTH)}", field="model.width")


class Design(NamedTuple):
    """What determines a model but for its initial weights.

    Attributes:
        name: one of `MODELS` or `OF_OTHER_DATA`, that of a plug-in, or `torchvision.<name>`.
        sample: one sample; a shape (channels, height, width) alone is that of an image.
        target: what the model is to say of it; a number alone is that of the classes.
        projection: number of outputs of a projection head before the last layer; None means no projection head.
        width: share of the units of hidden layers, for the models in `OF_ANY_WIDTH`.
        params: parameters of a plug-in's model, as JSON.
    """

    name: str
    sample: Sample | Shape
    target: Target | int
    projection: int | None = None
    width: float = 1.0
    params: str = ""


def build(
    name: str,
    sample: Sample | Shape,
    target: Target | int,
    seed: int,
    projection: int | None = None,
    width: float = 1.0,
) -> Any:
    """Builds a model from the parts of its design, as `built` does."""
    return built(Design(name, sample, target, projection, width), seed)


def built(design: Design, seed: int) -> Any:
    """Builds a model whose initial weights depend on design and seed alone; the state of torch's generator is restored.

    Raises:
        UnknownName: no model has that name.
        BadInput: the model is not made for such samples or targets, it cannot be built with another width, or a tensor
            has a dtype that cannot be trained or sent.
    """
    params = json.loads(design.params or "{}")
    check_name(design.name, design.width, params)
    sample, target = described(design.sample, design.target)
    with seeded_generators(seed):
        made = _made(design.name, sample, target, design.width, params)
        wanted = design.projection
        if wanted is not None:
            made = _projected(made, sample, wanted)
    check_dtypes(made, design.name)
    return with_own_dtype(made)


def described(sample: Sample | Shape, target: Target | int) -> tuple[Sample, Target]:
    """Returns the sample and target that `build` takes, from its short forms."""
    whole = sample if isinstance(sample, Sample) else Sample(sample, images=True)
    return whole, Classes(target) if isinstance(target, int) else target


def _made(name: str, sample: Sample, target: Target, width: float, params: Mapping[str, Any]) -> nn.Module:
    if plugged := MODEL_FACTORIES.plugged().get(name):
        return _plugged(plugged.value, sample, target, params)
    if name in OF_OTHER_DATA:
        return OF_OTHER_DATA[name](sample, target)
    if sample.dtype != "float32" or target.kind == "tokens" or (len(sample.shape) != 3 and name not in OF_ANY_SHAPE):
        takes = "numbers" if name in OF_ANY_SHAPE else "images (channels, height, width)"
        what = f"samples {sample.shape} of {sample.what} and targets of {target.kind}"
        raise BadInput(f"{name} takes {takes}, for classes or numbers; not {what}{_hint(sample)}", field="model.name")
    if name not in OF_ANY_SHAPE:
        check_image(name, sample)
    shape: Any = sample.shape
    if name.startswith(PREFIX):
        return torchvision_model(name, shape[0], target.n_outputs)
    make = partial(OF_ANY_WIDTH[name], width=width) if width != 1 else MODELS[name]
    return make(shape, target.n_outputs)


def _hint(sample: Sample) -> str:
    """What to do about samples of another kind, where it is likely."""
    if sample.dtype == "int64":
        return " (integers other than uint8 are indices: save pixels as uint8, numbers as floats)"
    if len(sample.shape) == 2:
        return " (grey images of floats have one channel: (n, 1, height, width))"
    return ""


def _plugged(factory: ModelFactory, sample: Sample, target: Target, params: Mapping[str, Any]) -> nn.Module:
    """The module of a plug-in's factory.

    Raises:
        BadInput: it failed, or returned something else.
    """
    values = factory.parse(params, "model.params")
    given = (sample, target) if values is None else (sample, target, values)
    called = f"build({', '.join(('sample', 'target', 'params')[: len(given)])})"
    with user_code(f"{called} of the model {factory.name}", "model.name"):
        made = factory.build(*given)
    whole = taken(made, factory.name)
    Pristine(whole)  # what its classes hold is remembered before it is used for the first time
    return whole


def _projected(made: nn.Module, sample: Sample, n_outputs: int) -> Classifier:
    """Inserts MOON's projection head, two linear layers with a ReLU, between a model's features and a new last layer.

    Its hidden layer is as wide as the features. The encoder has the weights of the model without a projection head.
    """
    model, head = features_of(made, "model.projection"), head_of(made, "projection heads")
    if not isinstance(head, nn.Linear):
        raise BadInput(f"projection heads go before a linear layer, not a {type(head).__name__}", field="model.name")
    if not head.weight.is_meta:
        check_features(made, sample.example(2), "model.projection")
    width = head.in_features
    projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs))
    features = nn.Sequential(OrderedDict(encoder=model.features, projection=projection))
    return Classifier(features, n_outputs, head.out_features)


def build_shapes(design: Design) -> Any:
    """Builds a model on torch's `meta` device, where tensors have shapes but no values; otherwise as `built`."""
    try:
        with torch.device("meta"):
            return built(design, 0)
    except UserCodeFailed:  # a user's may need values, as `torch.linspace(0, rate, depth).tolist()` does
        return built(design, 0)


@lru_cache(maxsize=64)
def least_batch(design: Design) -> int:
    """Returns the least number of samples in a training batch.

    It is 2 if a batch-norm has one value per channel and sample, since a single value has no variance, otherwise 1.

    Raises:
        UnknownName, BadInput: as for `built`.
    """
    made = built(design, 0)
    seen: list[int] = []

    def look(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0][0, 0].numel())  # of (batch, channels, ...)

    norms = [module for module in made.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    for module in norms:
        module.register_forward_pre_hook(look)
    if norms:
        with seeded_generators(0), torch.no_grad():  # as dropout, which draws from the default generator
            outputs_of(made, design.name, described(design.sample, design.target)[0].example(2))
    return 2 if 1 in seen else 1


@lru_cache(maxsize=64)
def layers_of(design: Design) -> tuple[Layer, ...]:
    """Returns the layers with parameters from input to output, as a forward pass uses them.

    Raises:
        UnknownName, BadInput: as for `built`; or the model cannot take such samples.
    """
    made, x = built(design, 0), described(design.sample, design.target)[0].example(2)
    with seeded_generators(0):  # as dropout, which draws from the default generator
        order = forward_order(made, lambda: outputs_of(made, design.name, x))
    return tuple(layers(made, order))


def first_outputs(design: Design, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Returns the outputs of a new model in evaluation, and where they stand in what its forward pass returns.

    The second value is such as `.logits of CausalLMOutput`; empty if the forward pass returns the tensor itself.

    Raises:
        UnknownName, BadInput: as for `built`; or the model cannot take such samples.
    """
    made, places = built(design, 0).eval(), list[str]()

    def look(module: nn.Module, inputs: Any, found: Any) -> None:
        if place := outputs_in(found, design.name)[1]:
            places.append(f"{place} of {type(found).__name__}")

    made.register_forward_hook(look, prepend=True)
    with seeded_generators(0), torch.no_grad():
        return outputs_of(made, design.name, x), "".join(places[:1])


def outputs_of(model: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
    """Returns the outputs of a model that is tried on a batch for the first time.

    Raises:
        BadInput: it cannot take such samples, or returns no tensor.
    """
    before = _shapes(model)
    what = f"a forward pass of {name} on samples {tuple(x.shape[1:])} of {str(x.dtype)[6:]}"
    with user_code(what, "model.name"):
        outputs = model(x)
    if not isinstance(outputs, torch.Tensor):
        raise BadInput(f"{name} returns {type(outputs).__name__}, not one tensor of outputs", field="model.name")
    odd = sorted(dict(before ^ _shapes(model)))
    if odd:
        why = "appears, goes or has another shape after a forward pass: make it in `__init__`"
        raise BadInput(f"{odd[0]} of the model {name} {why}; a cache with `persistent=False`", field="model.name")
    return outputs


def _shapes(model: nn.Module) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(tensor.shape)) for name, tensor in own_state(model).items()}
