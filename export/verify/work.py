"""How much of a forecast's arithmetic a file does in integers, counted in multiply-accumulates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from qat_tft.export.graph_reader import RECURRENT, GraphReader
from qat_tft.export.verify.intermediate_outputs import outputs_of, with_outputs

Inputs = Mapping[str, npt.NDArray[Any]]
Shapes = Mapping[str, tuple[int, ...]]


def integer_share(graph: GraphReader, inputs: Inputs) -> float | None:
    """Return the share of a forecast's multiply-accumulates in products of 8-bit integers; None without any product.

    A product [.., M, K] x [.., K, N] takes M K N of them for each matrix, an LSTM 4 H (K + H) for each step and row.
    Shapes are those of a run without onnxruntime's optimizations.

    Args:
        graph: of the file.
        inputs: of the file; a row is enough.
    """
    nodes = [product.node for product in graph.products] + [*graph.products_of_activations]
    if not nodes:
        return None
    shapes = _shapes(graph, nodes, inputs)
    on_integers = {id(product.node) for product in graph.products if product.integer}
    work = [(_work(node, shapes), id(node) in on_integers) for node in nodes]
    total = sum(count for count, _ in work)
    return sum(count for count, integer in work if integer) / total


def _work(node: NodeProto, shapes: Shapes) -> int:
    if node.op_type in RECURRENT:
        steps, rows, width = shapes[node.input[0]]
        hidden = shapes[node.output[0]][-1]
        return steps * rows * 4 * hidden * (width + hidden)
    return int(np.prod(shapes[node.output[0]])) * shapes[node.input[0]][-1]


def _shapes(graph: GraphReader, nodes: list[NodeProto], inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """Run the file with the operands and results of these nodes put out, and return the shapes of these."""
    known = {name: value.shape for name, value in (*graph.constants.items(), *inputs.items())}
    wanted = [name for node in nodes for name in (node.input[0], node.output[0]) if name not in known]
    content = with_outputs(graph.model, wanted).SerializeToString()
    values = outputs_of(content, inputs, optimized=False, threads=1)
    return {**known, **{name: value.shape for name, value in values.items()}}
