"""The model zoo.

Every model here is `head(features(x))`: `features` returns the representation before the last linear layer, (batch, d),
and `head` is that layer; the softmax is part of the loss. A model of images takes float32 (batch, channels, height,
width). With a projection head, `features` consists of `encoder` and `projection`. Other models may be any module from a
batch of samples to outputs; methods that need features, layers or units of them say which attribute is missing.

Sources: `mlp` and `cnn_mnist` McMahan et al. (AISTATS 2017); `cnn_cifar10` the same network; `cnn_6_12` DTPFL,
section 3.1; `cnn_6_16` and the projection head MOON (Li et al., CVPR 2021, section 4.1); `cnn_digits` Li et al. (FedBN,
ICLR 2021), appendix; `resnet*` He et al. (CVPR 2016) with the paper's CIFAR stem; `mobilenet_v1` Howard et al. (2017);
`vgg_mnist`, `vgg_cifar10` and `mobilenet_femnist` ES-AFL, table 1.
"""

from shared.training.models.classifier import (
    Classifier,
    Layer,
    Shape,
    buffer_names,
    features_of,
    head_of,
    layers,
    norm_names,
    own_state,
    parameter_names,
    read_state,
    tied_names,
    trainable_names,
    write_state,
)
from shared.training.models.pristine import Pristine, check_features, copied, unregistered
from shared.training.models.user_modules import check_finite
from shared.training.models.zoo import (
    MODEL_FACTORIES,
    MODELS,
    OF_OTHER_DATA,
    Design,
    ModelFactory,
    build,
    build_shapes,
    built,
    check_name,
    described,
    first_outputs,
    layers_of,
    least_batch,
    outputs_of,
)

__all__ = [
    "MODELS",
    "MODEL_FACTORIES",
    "OF_OTHER_DATA",
    "Classifier",
    "Design",
    "Layer",
    "ModelFactory",
    "Pristine",
    "Shape",
    "buffer_names",
    "build",
    "build_shapes",
    "built",
    "check_features",
    "check_finite",
    "check_name",
    "copied",
    "described",
    "features_of",
    "first_outputs",
    "head_of",
    "layers",
    "layers_of",
    "least_batch",
    "norm_names",
    "outputs_of",
    "own_state",
    "parameter_names",
    "read_state",
    "tied_names",
    "trainable_names",
    "unregistered",
    "write_state",
]
