from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_tft.export.verify.operators import count_products, operators_of


def graph_of(nodes: list[onnx.NodeProto], initializers: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_products_are_told_apart_by_what_they_multiply() -> None:
    nodes = [
        helper.make_node("MatMulIntegerToFloat", ["a", "b"], ["i"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"]),
        helper.make_node("MatMul", ["d", "i"], ["1"]),
        helper.make_node("FusedMatMul", ["i", "w"], ["2"], domain="com.microsoft"),
        helper.make_node("MatMul", ["i", "2"], ["3"]),
        helper.make_node("LSTM", ["3", "w", "w"], ["y"]),
        helper.make_node("Add", ["3", "w"], ["4"]),
    ]
    found = count_products(graph_of(nodes, {"w": np.ones((2, 2), np.float32)}))
    assert found.integer == {"MatMulIntegerToFloat": 1}
    assert found.floating == {
        "FusedMatMul with a float weight": 1,
        "LSTM": 1,
        "MatMul of dequantized integers": 1,
        "MatMul of two activations": 1,
    }


def test_onnxruntime_runs_a_quantized_product_of_a_file_on_integers(persistence_file: Path) -> None:
    # The hand-made file multiplies by a float matrix: that product must be found, and no integer one.
    assert operators_of(persistence_file).integer == {}
    assert sum(operators_of(persistence_file).floating.values()) == 1
