"""Which products onnxruntime really computes on integers, read from the graph it makes of a file."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.scratch import scratch_folder

INTEGER_PRODUCTS = (
    "MatMulIntegerToFloat",
    "QLinearMatMul",
    "MatMulInteger",
    "QGemm",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QLinearConv",
    "ConvInteger",
)
_FLOAT_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum", "Conv", "FusedConv", "LSTM")
_BATCHED, _AFFINE = 3, 2  # an embedding x w + b is a batched product with two rows: w and b


@dataclass(frozen=True)
class Operators:
    """Products of an optimized graph.

    Attributes:
        integer: operator name to the number of nodes that multiply integers.
        floating: description of a product that stayed float to the number of its nodes.
    """

    integer: dict[str, int] = field(default_factory=dict)
    floating: dict[str, int] = field(default_factory=dict)


def operators_of(path: Path) -> Operators:
    """Let onnxruntime optimize a file for this machine's CPU and count the products in what it would run."""
    with scratch_folder() as folder:
        optimized = folder / "optimized.onnx"
        ForecastSession(path, threads=1, optimized_graph=optimized)
        return count_products(onnx.load(optimized))


def count_products(model: ModelProto) -> Operators:
    """Count integer and float products of an optimized graph."""
    nodes = model.graph.node
    constants = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    dequantized = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    integer = Counter(node.op_type for node in nodes if node.op_type in INTEGER_PRODUCTS)
    floating = Counter(_describe(node, constants, dequantized) for node in nodes if node.op_type in _FLOAT_PRODUCTS)
    return Operators(dict(sorted(integer.items())), dict(sorted(floating.items())))


def _describe(node: NodeProto, constants: dict[str, list[int]], dequantized: set[str]) -> str:
    if node.op_type == "LSTM":
        return "LSTM"
    operands = node.input[:2]
    if any(name in dequantized for name in operands):
        return f"{node.op_type} of dequantized integers"
    shape = next((constants[name] for name in operands if name in constants), None)
    if shape is not None and len(shape) == _BATCHED and shape[-2] <= _AFFINE:
        return f"{node.op_type} of single numbers (embeddings)"
    if shape is not None:
        return f"{node.op_type} with a float weight"
    return f"{node.op_type} of two activations"
