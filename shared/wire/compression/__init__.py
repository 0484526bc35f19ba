"""Lossy compression of models and updates, between an edge and its devices and between cloud and edges.

    tensor --(fp16, int8, ternary, topk)--> Coded --(decoded)--> tensor, nearly the same

`Coded` is a compressed tensor: it travels as its parts (`shared.wire`), and any operation on it decodes it first.
`Compressor` applies the spec's codecs to the records of an algorithm.
"""

from shared.wire.compression.codecs import Fp16, Int8, Ternary, TopK, from_parts, mean_magnitude, ternary_of
from shared.wire.compression.coded_tensor import Codec, Coded, carried_bytes, decoded
from shared.wire.compression.compressor import Compressor

__all__ = [
    "Codec",
    "Coded",
    "Compressor",
    "Fp16",
    "Int8",
    "Ternary",
    "TopK",
    "carried_bytes",
    "decoded",
    "from_parts",
    "mean_magnitude",
    "ternary_of",
]
