"""Lossy encodings of what travels between an edge and its devices.

    tensor --(fp16, int8, ternary, topk)--> Coded --(decoded)--> tensor, nearly the same

`Coded` is a tensor in its short form: it travels so (`shared.wire`), and whatever is computed with it works on what it
stands for. `Compression` applies the spec's codecs to the records of an algorithm.
"""

from shared.codecs.coded import Coded, carried_bytes, decoded
from shared.codecs.compression import Compression
from shared.codecs.forms import fp16, int8, mean_magnitude, ternary, ternary_of, topk
from shared.codecs.specs import CodecSpec, CompressionSpec

__all__ = [
    "CodecSpec",
    "Coded",
    "Compression",
    "CompressionSpec",
    "carried_bytes",
    "decoded",
    "fp16",
    "int8",
    "mean_magnitude",
    "ternary",
    "ternary_of",
    "topk",
]
