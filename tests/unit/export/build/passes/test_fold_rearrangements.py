import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.fold_rearrangements import fold_rearrangements


def split_weights_graph() -> onnx.ModelProto:
    """x times the transposed halves of one 8-bit weight; a Transpose of x itself must stay."""
    weight = np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4)
    values = {"weight": weight, "sizes": np.array([1, 1]), "scale": np.float32(0.5), "zero": np.int8(0)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Split", ["weight", "sizes"], ["first", "second"], axis=0),
        helper.make_node("Transpose", ["first"], ["first_turned"], perm=[0, 2, 1]),
        helper.make_node("Transpose", ["second"], ["second_turned"], perm=[0, 2, 1]),
        helper.make_node("DequantizeLinear", ["first_turned", "scale", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["second_turned", "scale", "zero"], ["b"]),
        helper.make_node("MatMul", ["turned", "a"], ["xa"]),
        helper.make_node("MatMul", ["turned", "b"], ["xb"]),
        helper.make_node("Add", ["xa", "xb"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "split",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 3])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_rearranged_weights_are_stored_as_they_are_used() -> None:
    model, before = split_weights_graph(), split_weights_graph()
    assert fold_rearrangements(model) == 3
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count("Transpose") == 1
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    assert set(stored) == {"first_turned", "second_turned", "scale", "zero"}
    assert all(stored[name].data_type == TensorProto.INT8 for name in ("first_turned", "second_turned"))
    x = np.random.default_rng(0).normal(size=(1, 4, 5)).astype(np.float32)
    after, expected = (ReferenceEvaluator(graph).run(None, {"x": x})[0] for graph in (model, before))
    assert np.array_equal(after, expected)


def test_a_graph_without_constant_rearrangements_is_left_alone() -> None:
    model = split_weights_graph()
    fold_rearrangements(model)
    folded = model.SerializeToString()
    assert fold_rearrangements(model) == 0
    assert model.SerializeToString() == folded
