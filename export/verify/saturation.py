"""Can two products leave 16 bits when they are added? A bound from a file alone, for x86 CPUs without VNNI.

There onnxruntime multiplies unsigned activations by signed weights with VPMADDUBSW, which adds neighbouring products
of a column in pairs in 16 bits and saturates; only these sums are added up in 32 bits (MLAS, QgemmU8X8KernelAvx2).
Signed activations are shifted to unsigned ones before that.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from qat_tft.export.graph_reader import GraphReader
from qat_tft.quantization.scheme import PAIR_LIMIT

_HIGHEST_ACTIVATION = 255
_UNKNOWN = np.full((2, 1), -128, np.int8)  # any int8 weight at all

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Saturation:
    """What the integer products of a file can do to a 16-bit sum.

    Attributes:
        products: how many products of 8-bit activations and 8-bit weights the file holds.
        saturating: in how many of them some activations would take a pair's sum beyond 16 bits.
        largest: the largest magnitude that a pair's sum can have in any of them.
    """

    products: int
    saturating: int
    largest: int


def saturation(model: ModelProto) -> Saturation:
    """Bound the sum of two products in every integer product of a graph.

    The bound takes the two largest and the two smallest weights of each column, wherever they stand, and
    activations from 0 to 255: it depends neither on data nor on how a kernel orders the pairs.
    """
    pairs = [max(largest_pair(weight) for weight in weights) for weights in _integer_weights(model)]
    return Saturation(len(pairs), sum(pair > PAIR_LIMIT for pair in pairs), max(pairs, default=0))


def largest_pair(weight: Codes) -> int:
    """Largest magnitude of `a w + b v` for two weights of one column of [..., K, N] and codes a and b of 0 to 255."""
    ordered = np.sort(weight.astype(np.int64), axis=-2)
    positive, negative = ordered[..., -2:, :].clip(min=0).sum(-2), ordered[..., :2, :].clip(max=0).sum(-2)
    return int(_HIGHEST_ACTIVATION * max(positive.max(), -negative.min()))


def _integer_weights(model: ModelProto) -> list[tuple[Codes, ...]]:
    """Of each node that multiplies 8-bit activations by 8-bit weights, these weights."""
    graph = GraphReader(model)
    nodes = (node for node in model.graph.node if graph.multiplies_codes(node))
    weights = (graph.stored_weights(node) for node in nodes)
    return [tuple(graph.constants[name] for name in names) or (_UNKNOWN,) for names in weights]
