"""Lossy encodings of what travels between an edge and its devices.

    tensor --(fp16, int8, ternary, topk)--> Coded --(decoded)--> tensor, nearly the same

`Coded` is a tensor in its short form: it travels so (`shared.wire`), and whatever is computed with it works on what it
stands for. `Compression` applies the spec's codecs to the records of an algorithm.
"""

from shared.wire.compression.codecs import Fp16, Int8, Ternary, TopK, mean_magnitude, ternary_of
from shared.wire.compression.coded_tensor import Codec, Coded, carried_bytes, decoded
from shared.wire.compression.compressor import Compressor
from shared.wire.compression.specs import CodecSpec, CompressionSpec, from_parts

__all__ = [
    "Codec",
    "CodecSpec",
    "Coded",
    "CompressionSpec",
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
