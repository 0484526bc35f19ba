"""The model zoo.

Every model is `head(features(x))`: `features` gives the representation before the last linear layer,
(batch, d), and `head` is that layer; the softmax is the loss's. A model takes float32 (batch, channels,
height, width). With a projection head, `features` are `encoder` and `projection`.

Sources: `mlp` and `cnn_mnist` McMahan et al. (AISTATS 2017); `cnn_cifar10` the same family; `cnn_6_12` DTPFL,
section 3.1; `cnn_6_16` and the projection head MOON (Li et al., CVPR 2021, section 4.1); `cnn_digits` Li et al. (FedBN,
ICLR 2021), appendix; `resnet*` He et al. (CVPR 2016) with the paper's CIFAR stem; `mobilenet_v1` Howard et al. (2017).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from shared.errors import BadInput, UnknownName
from shared.training.draws import lent

Shape = tuple[int, int, int]


class Classifier(nn.Module):
    """A feature extractor and its linear head."""

    def __init__(self, features: nn.Module, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(n_features, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, n_classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


@dataclass(frozen=True)
class Layer:
    """A layer with parameters: a convolution or linear module and the normalisation that follows it.

    Attributes:
        name: of the convolution or linear module.
        parameters: names of its parameters in the model's state, those of its normalisation included.
        buffers: names of its buffers (running statistics).
    """

    name: str
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()


def check_name(name: str) -> None:
    """Refuse a name that no model has.

    Raises:
        UnknownName: listing the names there are.
    """
    if name not in MODELS:
        raise UnknownName("model", name, list(MODELS), field="model.name")


def build(name: str, input_shape: Shape, n_classes: int, seed: int, projection: int | None = None) -> Classifier:
    """Make a model with initial weights that depend on the arguments only; torch's generator is left alone.

    Args:
        name: one of `MODELS`.
        input_shape: (channels, height, width).
        n_classes: width of the head.
        seed: of the initial weights.
        projection: outputs of a projection head before the last layer; None = there is none.

    Raises:
        UnknownName: no model of that name.
        BadInput: the images are too small for the model.
    """
    check_name(name)
    with lent(seed):
        made = MODELS[name](input_shape, n_classes)
        return made if projection is None else _projected(made, projection)


def _projected(model: Classifier, n_outputs: int) -> Classifier:
    """MOON's projection head between a model's features and a new last layer: two linear layers, ReLU between them.

    The hidden layer is as wide as the features. The encoder's weights are those of the model without it.
    """
    width = model.head.in_features
    projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs))
    features = nn.Sequential(OrderedDict(encoder=model.features, projection=projection))
    return Classifier(features, n_outputs, model.head.out_features)


@lru_cache(maxsize=64)
def least_batch(name: str, input_shape: Shape, n_classes: int, projection: int | None = None) -> int:
    """Samples that a batch must have to be trained on: 1, or 2 where a batch-norm sees one value a channel of a sample.

    One value has no variance. Only shapes are computed, on torch's `meta` device; arguments as of `build`.

    Raises:
        UnknownName, BadInput: as `build` does.
    """
    seen: list[int] = []

    def look(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0][0, 0].numel())  # of (batch, channels, ...)

    with torch.device("meta"):
        made = build(name, input_shape, n_classes, 0, projection)
        for module in made.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.register_forward_pre_hook(look)
        made(torch.empty(2, *input_shape))
    return 2 if 1 in seen else 1


# ---- a model's state


def parameter_names(model: nn.Module) -> list[str]:
    """Names of what is trained, in the model's order."""
    return [name for name, _ in model.named_parameters()]


def buffer_names(model: nn.Module) -> list[str]:
    """Names of what is carried but not trained (batch-norm statistics), in the model's order."""
    kept = model.state_dict().keys() - set(parameter_names(model))
    return [name for name, _ in model.named_buffers() if name in kept]


def layers(model: nn.Module) -> list[Layer]:
    """The layers with parameters, in the order of the modules; batch-norm counts with the layer before it."""
    found: list[Layer] = []
    for module_name, module in model.named_modules():
        parameters = _own_names(module_name, [name for name, _ in module.named_parameters(recurse=False)])
        buffers = _own_names(module_name, [name for name, _ in module.named_buffers(recurse=False)])
        if not parameters and not buffers:
            continue
        if found and isinstance(module, nn.modules.batchnorm._NormBase):
            last = found.pop()
            found.append(Layer(last.name, last.parameters + parameters, last.buffers + buffers))
        else:
            found.append(Layer(module_name, parameters, buffers))
    return found


def _own_names(module_name: str, names: list[str]) -> tuple[str, ...]:
    return tuple(f"{module_name}.{name}" if module_name else name for name in names)


def read_state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers by name, contiguous whatever the model's memory format."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }


def write_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy all parameters and buffers into the model's own memory.

    Copied, never adopted: a tensor decoded from a body is a view with other alignment, which changes bits.

    Raises:
        BadInput: a name is missing or unknown, or a shape or dtype differs; nothing has then been written.
    """
    own = model.state_dict()
    if own.keys() != state.keys():
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        raise BadInput(f"the state does not fit the model: missing {missing}, unknown {unknown}")
    for name, tensor in state.items():
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            raise BadInput(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}, the model's is "
                f"{own[name].dtype} {tuple(own[name].shape)}"
            )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


# ---- the models


def _mlp(shape: Shape, n_classes: int) -> Classifier:
    """One hidden layer of 64 ReLU units: 784-64-10 on MNIST."""
    n_inputs = shape[0] * shape[1] * shape[2]
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(n_inputs, 64), nn.ReLU()), 64, n_classes)


def _two_convolutions(shape: Shape, widths: tuple[int, int]) -> tuple[list[nn.Module], int]:
    """Two 5x5 convolutions, each with ReLU and a 2x2 max-pool, flattened; and how many features come out.

    Unpadded where both sides have at least 28 pixels (28 -> 4x4, 32 -> 5x5); smaller images (8, 16) would
    shrink to nothing, there both convolutions are padded by 2 (8 -> 2x2, 16 -> 4x4).
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise BadInput(f"images of {height}x{width} are too small for two 2x2 pools", field="model.name")
    padding = 0 if min(height, width) >= 28 else 2
    modules: list[nn.Module] = []
    for before, after in zip((channels, widths[0]), widths, strict=True):
        modules += [nn.Conv2d(before, after, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = ((side - 4 + 2 * padding) // 2 for side in (height, width))
    return [*modules, nn.Flatten()], widths[1] * height * width


def _cnn_mnist(shape: Shape, n_classes: int) -> Classifier:
    """FedAvg's CNN: 5x5 convolutions of 32 and 64 channels, 512 units.

    Unpadded it has 582,026 parameters at 1x28x28 and 10 classes. McMahan et al. print 1,663,370, which is
    what padding by 2 gives.
    """
    modules, n_flat = _two_convolutions(shape, (32, 64))
    return Classifier(nn.Sequential(*modules, nn.Linear(n_flat, 512), nn.ReLU()), 512, n_classes)


def _cnn_120_84(widths: tuple[int, int]) -> Callable[[Shape, int], Classifier]:
    """5x5 convolutions, then 120 and 84 units (of channels 6 and 16, LeNet-5 on colour images: 62,006 parameters)."""

    def make(shape: Shape, n_classes: int) -> Classifier:
        modules, n_flat = _two_convolutions(shape, widths)
        dense = (nn.Linear(n_flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        return Classifier(nn.Sequential(*modules, *dense), 84, n_classes)

    return make


def _resnet(depth: int) -> Callable[[Shape, int], Classifier]:
    """torchvision's ResNet for small images: a 3x3 stem of stride 1 and no max-pool.

    Images of 8x8 end at 1x1, where batch-norm cannot train on a batch of one sample.
    """

    def make(shape: Shape, n_classes: int) -> Classifier:
        from shared.training.vision import torchvision

        body = getattr(torchvision().models, f"resnet{depth}")(weights=None)
        body.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
        body.maxpool = nn.Identity()
        n_features = body.fc.in_features
        body.fc = nn.Identity()
        return Classifier(body, n_features, n_classes)

    return make


def _mobilenet_v1(shape: Shape, n_classes: int) -> Classifier:
    """MobileNet-V1 for small images: the paper's table 1 with a stem of stride 1 (32x32 ends at 2x2).

    3,217,226 parameters at 3x32x32 and 10 classes. Images of 8x8 end at 1x1, as for `resnet*`.
    """
    widths = [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    strides = [1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1]
    modules = _normalised(nn.Conv2d(shape[0], 32, 3, padding=1, bias=False), 32)
    before = 32
    for after, stride in zip(widths, strides, strict=True):
        depthwise = nn.Conv2d(before, before, 3, stride=stride, padding=1, groups=before, bias=False)
        modules += _normalised(depthwise, before)
        modules += _normalised(nn.Conv2d(before, after, 1, bias=False), after)
        before = after
    return Classifier(nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten()), before, n_classes)


def _normalised(convolution: nn.Conv2d, n_channels: int) -> list[nn.Module]:
    """A convolution with batch-norm and ReLU; initialised as torchvision does its ResNets."""
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(n_channels), nn.ReLU()]


def _cnn_digits(shape: Shape, n_classes: int) -> Classifier:
    """FedBN's network for digits: three padded 5x5 convolutions of 64, 64 and 128 channels, 2048 and 512 units.

    Batch-norm after each layer but the last; a 2x2 max-pool after each of the first two convolutions. At 3x28x28 the
    first linear layer sees 6272 inputs, and there are 14,219,210 parameters.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise BadInput(f"images of {height}x{width} are too small for two 2x2 pools", field="model.name")
    modules: list[nn.Module] = []
    for before, after in ((channels, 64), (64, 64), (64, 128)):
        modules += [nn.Conv2d(before, after, 5, padding=2), nn.BatchNorm2d(after), nn.ReLU()]
        modules += [nn.MaxPool2d(2)] if after < 128 else [nn.Flatten()]
    for inputs, units in ((128 * (height // 4) * (width // 4), 2048), (2048, 512)):
        modules += [nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.ReLU()]
    return Classifier(nn.Sequential(*modules), 512, n_classes)


MODELS: dict[str, Callable[[Shape, int], Classifier]] = {
    "mlp": _mlp,
    "cnn_mnist": _cnn_mnist,
    "cnn_cifar10": _cnn_mnist,
    "cnn_6_12": _cnn_120_84((6, 12)),
    "cnn_6_16": _cnn_120_84((6, 16)),
    "cnn_digits": _cnn_digits,
    "resnet18": _resnet(18),
    "resnet34": _resnet(34),
    "resnet50": _resnet(50),
    "mobilenet_v1": _mobilenet_v1,
}
"""The models by name; `cnn_cifar10` is `cnn_mnist` under the name it has on 3x32x32 (878,538 parameters)."""
