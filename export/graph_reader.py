"""One way to read a graph: its constants, who makes and who reads each value, and its products with stored weights."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from onnx import ModelProto, NodeProto

from qat_tft.export.graph_edit import Constants, constant_values, producers_of, readers_of

RECURRENT = ("LSTM", "DynamicQuantizeLSTM")
ROUNDING = ("QuantizeLinear", "DequantizeLinear")

_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm")
_INTEGER = ("MatMulInteger", "DynamicQuantizeLSTM")
_OF_A_WEIGHT = ("DequantizeLinear", "Cast", "Mul", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity")
_STATES = slice(5, 7)  # inputs initial_h and initial_c of the recurrent operators
_PARAMETER = re.compile(
    r"model\.(?P<layer>.+?)\.(?:weight(?:_ih|_hh)?|chunk(?P<chunk>\d+)_\d+)(?:\.half(?P<half>\d))?(?:\..+)?"
)


@dataclass(frozen=True)
class Product:
    """A node that multiplies an activation by a weight of the file.

    Attributes:
        node: the product.
        weights: names of the initializers that hold the weight; two of a recurrent operator, W and R.
        layer: name of the layer in the model; empty where the weight's name does not tell.
        chunk, half: which variables and which half of the outputs it computes, both counted from 0.
        integer: whether it multiplies 8-bit codes of both.
    """

    node: NodeProto
    weights: tuple[str, ...]
    layer: str
    chunk: int
    half: int
    integer: bool

    @property
    def recurrent(self) -> bool:
        """Whether it is a whole LSTM."""
        return self.node.op_type in RECURRENT

    @property
    def states(self) -> tuple[str, ...]:
        """Initial hidden and cell state of a recurrent operator, each [1, B, H]."""
        return tuple(self.node.input[_STATES]) if self.recurrent else ()


@dataclass(frozen=True)
class Rounding:
    """How what goes into a product is rounded.

    Attributes:
        source: the value before it is rounded.
        time_first: whether that is [T, B, H] instead of [B, T, H]; only before recurrent operators.
        scale, zero_point: names of the constants; empty where nothing is rounded.
        divisor: name of the constant that the value is divided by before, where scales stand outside QuantizeLinear.
    """

    source: str
    time_first: bool = False
    scale: str = ""
    zero_point: str = ""
    divisor: str = ""


class GraphReader:
    """Look-ups in a graph that is not changed meanwhile."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    @cached_property
    def constants(self) -> Constants:
        """Values of initializers and Constant nodes by name."""
        return constant_values(self.model)

    @cached_property
    def producers(self) -> dict[str, NodeProto]:
        """The node that makes each value."""
        return producers_of(self.model)

    @cached_property
    def readers(self) -> dict[str, list[NodeProto]]:
        """The nodes that read each value, once per input."""
        return readers_of(self.model)

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """Every product with a stored weight, in the order of the graph."""
        return tuple(self._products())

    @cached_property
    def products_of_activations(self) -> tuple[NodeProto, ...]:
        """Every product of two activations."""
        known = {id(product.node) for product in self.products}
        return tuple(node for node in self.model.graph.node if node.op_type in _PRODUCTS and id(node) not in known)

    def of_layer(self, layer: str) -> list[Product]:
        """The products of a layer, by chunk and half; none where the graph has no such layer."""
        own = (product for product in self.products if product.layer == layer)
        return sorted(own, key=lambda product: (product.chunk, product.half))

    def rounding(self, product: Product) -> Rounding:
        """How the activation of a product is rounded, and what it is before that."""
        value, time_first = product.node.input[0], product.recurrent
        scale = zero_point = divisor = ""
        while (node := self.producers.get(value)) is not None:
            if product.recurrent and node.op_type == "Transpose":
                time_first = not time_first
            elif node.op_type == "QuantizeLinear":
                scale, zero_point = node.input[1], (node.input[2] if len(node.input) > 2 else "")
            elif self._divides(node, value):
                divisor = node.input[1]
            elif node.op_type != "DequantizeLinear":
                break
            value = node.input[0]
        return Rounding(value, time_first, scale, zero_point, divisor)

    def _divides(self, node: NodeProto, value: str) -> bool:
        readers = self.readers.get(value, [])
        rounded = bool(readers) and all(reader.op_type == "QuantizeLinear" for reader in readers)
        return node.op_type == "Div" and node.input[1] in self.constants and rounded

    def stored_weights(self, node: NodeProto) -> tuple[str, ...]:
        """The initializers that a product multiplies by, W and R of a recurrent operator; empty where one is none."""
        places = (1, 2) if node.op_type in RECURRENT else (1,)
        names = tuple(self._weight(node.input[place]) for place in places)
        return names if all(names) else ()

    def multiplies_codes(self, node: NodeProto) -> bool:
        """Whether a product is one of 8-bit integers."""
        if node.op_type in _INTEGER:
            return True
        makers = [self.producers.get(name) for name in node.input[:2]]
        return node.op_type == "MatMul" and all(m is not None and m.op_type == "DequantizeLinear" for m in makers)

    def _products(self) -> Iterator[Product]:
        for node in self.model.graph.node:
            weights = self.stored_weights(node) if node.op_type in (*_PRODUCTS, *RECURRENT) else ()
            if not weights:
                continue
            found = _PARAMETER.fullmatch(weights[0])
            chunk, half = (int((found and found[part]) or 0) for part in ("chunk", "half"))
            yield Product(node, weights, found["layer"] if found else "", chunk, half, self.multiplies_codes(node))

    def _weight(self, name: str) -> str:
        """The initializer that an operand is made of; empty where it is an activation, or a single number."""
        while name not in self.constants:
            node = self.producers.get(name)
            if node is None or node.op_type not in _OF_A_WEIGHT:
                return ""
            name = node.input[0]
        return name if self.constants[name].ndim > 1 else ""
