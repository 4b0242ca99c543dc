"""The share of arithmetic that a file does in integers, against a count by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.verify.work import integer_share

ROWS, WIDTH, OUT = 3, 4, 5


def graph_of(nodes: list[onnx.NodeProto], **constants: np.ndarray) -> GraphReader:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "work", [x], [y], tensors)
    return GraphReader(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


INPUTS = {"x": np.ones((ROWS, WIDTH), np.float32)}
ROUNDED = [
    helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"]),
    helper.make_node("MatMulInteger", ["codes", "weight", "zero", "none"], ["sums"]),
    helper.make_node("Cast", ["sums"], ["a"], to=TensorProto.FLOAT),
]
CODES = {
    "scale": np.float32(0.1),
    "zero": np.uint8(0),
    "none": np.int8(0),
    "weight": np.ones((WIDTH, OUT), np.int8),
}


def test_products_count_by_rows_times_inner_size_times_columns() -> None:
    nodes = [*ROUNDED, helper.make_node("MatMul", ["a", "floats"], ["y"])]
    graph = graph_of(nodes, **CODES, floats=np.ones((OUT, 2), np.float32))
    integer, floating = ROWS * WIDTH * OUT, ROWS * OUT * 2
    assert integer_share(graph, INPUTS) == pytest.approx(integer / (integer + floating))


def test_a_product_of_two_activations_counts_as_floating() -> None:
    nodes = [*ROUNDED, helper.make_node("Transpose", ["a"], ["t"]), helper.make_node("MatMul", ["a", "t"], ["y"])]
    integer, floating = ROWS * WIDTH * OUT, ROWS * OUT * ROWS
    assert integer_share(graph_of(nodes, **CODES), INPUTS) == pytest.approx(integer / (integer + floating))


def test_an_lstm_counts_by_steps_rows_and_four_gates() -> None:
    hidden = 2
    nodes = [
        *ROUNDED,
        helper.make_node("Unsqueeze", ["x", "axis"], ["sequence"]),
        helper.make_node("LSTM", ["sequence", "W", "R"], ["y"], hidden_size=hidden),
    ]
    weights = {"W": np.ones((1, 4 * hidden, WIDTH), np.float32), "R": np.ones((1, 4 * hidden, hidden), np.float32)}
    graph = graph_of(nodes, **CODES, **weights, axis=np.array([1]))  # ROWS steps of one row
    integer, floating = ROWS * WIDTH * OUT, ROWS * 4 * hidden * (WIDTH + hidden)
    assert integer_share(graph, INPUTS) == pytest.approx(integer / (integer + floating))


def test_a_graph_without_products_has_no_share() -> None:
    assert integer_share(graph_of([helper.make_node("Relu", ["x"], ["y"])]), INPUTS) is None
