"""The values around the products of each layer, added to a graph's outputs so that single layers can be compared.

A layer may have become several products: one per chunk of variables, and one per half of a gate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, ValueInfoProto

from qat_tft.export.graph_reader import GraphReader, Product

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


def with_outputs(model: ModelProto, values: Mapping[str, list[ProductValues]]) -> ModelProto:
    """Return a copy of a graph that also puts out every value that is named."""
    extended = ModelProto()
    extended.CopyFrom(model)
    there = {value.name for value in extended.graph.output}
    wanted = dict.fromkeys(name for products in values.values() for one in products for name in one.names)
    extended.graph.output.extend(ValueInfoProto(name=name) for name in wanted if name not in there)
    return extended


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
