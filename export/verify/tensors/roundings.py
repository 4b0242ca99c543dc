"""Constants that are looked up where they act: the rounding before each product, and the limits of category codes.

Single numbers say little by themselves: a scale that has become another layer's is a number of the run too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_tft.export.graph_reader import GraphReader, Product, Rounding
from qat_tft.export.verify.tensors.expected import InputRange

Array = npt.NDArray[Any]

_SHOWN = 4


@dataclass(frozen=True)
class Checked:
    """Constants that were looked up: their names, and a sentence for each that is wrong."""

    names: frozenset[str]
    wrong: tuple[str, ...]


def check_roundings(graph: GraphReader, ranges: Mapping[str, InputRange]) -> Checked:
    """Compare scale and zero point before every product of the layers with what they have to be."""
    names: set[str] = set()
    wrong: list[str] = []
    for product in graph.products:
        if product.layer not in ranges or product.node.op_type == "DynamicQuantizeLSTM":
            continue
        rounding, promised = graph.rounding(product), ranges[product.layer]
        if not rounding.scale:
            wrong.append(f"the input of {product.layer} is not rounded")
            continue
        names.update(filter(None, (rounding.scale, rounding.zero_point, rounding.divisor)))
        wrong += _wrong_rounding(graph, product, rounding, _part_of(promised, graph, product))
        if product.node.op_type == "MatMulInteger":
            names.update(product.node.input[2:])
            wrong += _wrong_zeros(graph, product, rounding)
    return Checked(frozenset(names), tuple(wrong))


def check_cardinalities(graph: GraphReader, known: Mapping[str, Sequence[int]]) -> Checked:
    """Compare the number of values that each category column knows with what its codes are compared with.

    Args:
        graph: of the file.
        known: name of each input of categories to how many values each of its columns knows.
    """
    names: set[str] = set()
    wrong: list[str] = []
    for node in graph.model.graph.node:
        if node.op_type == "Less" and node.input[0] in known:
            name, wanted = node.input[1], np.array(known[node.input[0]])
            names.add(name)
            found = graph.constants.get(name, np.zeros(0, np.int64)).reshape(-1)
            if not np.array_equal(found, wanted):
                wrong.append(f"codes of {node.input[0]} are known below {_some(found)} instead of {_some(wanted)}")
    return Checked(frozenset(names), tuple(wrong))


def _part_of(promised: InputRange, graph: GraphReader, product: Product) -> InputRange:
    """Return the ranges of the variables that a product computes; the one range of a layer that has but one."""
    if not promised.scale.ndim:
        return InputRange(promised.scale.reshape(-1), promised.zero_point.reshape(-1))
    sizes = {one.chunk: len(graph.constants[one.weights[0]]) for one in graph.of_layer(product.layer)}
    start = sum(size for chunk, size in sizes.items() if chunk < product.chunk)
    part = slice(start, start + sizes[product.chunk])
    return InputRange(promised.scale[part], promised.zero_point[part])


def _wrong_rounding(graph: GraphReader, product: Product, rounding: Rounding, promised: InputRange) -> Iterator[str]:
    scale = graph.constants[rounding.scale].reshape(-1)
    if rounding.divisor and np.array_equal(scale, [1.0]):  # scales of variables stand in a division
        scale = graph.constants[rounding.divisor].reshape(-1)
    zero = graph.constants[rounding.zero_point].reshape(-1)
    if not np.array_equal(scale, promised.scale):
        yield f"the scale before {product.layer} is {_some(scale)} instead of {_some(promised.scale)}"
    fits = zero.dtype == promised.zero_point.dtype and len(zero) in (1, len(promised.zero_point))
    if not fits or not np.array_equal(np.broadcast_to(zero, promised.zero_point.shape), promised.zero_point):
        yield f"the zero point before {product.layer} is {_some(zero)} instead of {_some(promised.zero_point)}"


def _wrong_zeros(graph: GraphReader, product: Product, rounding: Rounding) -> Iterator[str]:
    """Yield what is wrong with the zero points that an integer product subtracts itself."""
    wanted = (graph.constants[rounding.zero_point], np.zeros(1, np.int8))
    for name, zero in zip(product.node.input[2:], wanted, strict=True):
        found = graph.constants[name]
        if not np.array_equal(found.reshape(-1), zero.reshape(-1)):
            yield f"the product of {product.layer} subtracts {_some(found)} instead of {_some(zero)}"


def _some(values: Array) -> str:
    flat = values.reshape(-1)
    shown = ", ".join(f"{number:.6g}" for number in flat[:_SHOWN].tolist())
    return shown + (", ..." if flat.size > _SHOWN else "") or "no constant"
