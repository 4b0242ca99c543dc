"""The values around the products of each layer, added to a graph's outputs so that single layers can be compared.

A layer may have become several products: one per chunk of variables, and one per half of a gate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnxruntime as ort
from onnx import ModelProto, ValueInfoProto

from qat_tft.export.graph_reader import GraphReader, Product
from qat_tft.export.inference.session import session_options

Values = dict[str, npt.NDArray[Any]]

_AFTER = ("Add", "Mul", "Cast", "Reshape")


@dataclass(frozen=True)
class ProductValues:
    """Names of the values around one product of a layer.

    Attributes:
        product: the product.
        input: what goes in, before it is rounded.
        time_first: whether that is [T, B, H] instead of [B, T, H]; only of recurrent operators.
        output: what comes out, bias and scales included.
    """

    product: Product
    input: str
    time_first: bool
    output: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every value of the graph that is needed."""
        return self.input, *self.product.states, self.output


def find_values(graph: GraphReader, layers: Mapping[str, int]) -> dict[str, list[ProductValues]]:
    """Return the values of each layer that the graph holds, in the order of chunks and halves.

    Args:
        graph: of an INT8 file.
        layers: name of each layer to how many Mul and Add nodes belong to it after its product.
    """
    found = {}
    for layer, after in layers.items():
        products = graph.of_layer(layer)
        if products:
            found[layer] = [_values(graph, product, after) for product in products]
    return found


def names_of(values: Mapping[str, list[ProductValues]]) -> list[str]:
    """Return the names of all values of all layers."""
    return [name for products in values.values() for one in products for name in one.names]


def with_outputs(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """Return a copy of a graph that also puts out every value that is named."""
    extended = ModelProto()
    extended.CopyFrom(model)
    there = {value.name for value in extended.graph.output}
    extended.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in there)
    return extended


def outputs_of(content: bytes, inputs: Mapping[str, npt.NDArray[Any]], *, optimized: bool, threads: int) -> Values:
    """Run a serialized graph in onnxruntime and return everything that it puts out, by name."""
    options = session_options(optimized=optimized, threads=threads)
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _values(graph: GraphReader, product: Product, after: int) -> ProductValues:
    rounding = graph.rounding(product)
    steps = after + (product.node.op_type == "MatMulInteger")
    output = product.node.output[0] if product.recurrent else _after(graph, product.node.output[0], steps)
    return ProductValues(product, rounding.source, rounding.time_first, output)


def _after(graph: GraphReader, value: str, steps: int) -> str:
    # Rows may be laid side by side meanwhile: a Reshape before the first of the steps, and one after the last.
    wide = False
    while steps or wide:
        (node,) = graph.readers[value]
        assert node.op_type in _AFTER, "a layer's bias and scales come right after its product"
        wide ^= node.op_type == "Reshape"
        steps -= node.op_type in ("Add", "Mul")
        value = node.output[0]
    return value
