import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.shorten_names import shorten_names


def wordy_graph() -> onnx.ModelProto:
    """Two products, each with its own copy of the same scale, under long names."""
    weight = np.arange(4, dtype=np.float32).reshape(2, 2)
    constants = {
        "layer.first.weight": weight,
        "layer.second.weight": weight,
        "scale_of_the_first": np.float32(0.5),
        "scale_of_the_second": np.float32(0.5),
        "offset": np.float32(1.5),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "layer.first.weight"], ["product_of_the_first"], "first/MatMul"),
        helper.make_node("Mul", ["product_of_the_first", "scale_of_the_first"], ["first"], "first/Mul"),
        helper.make_node("MatMul", ["first", "layer.second.weight"], ["product_of_the_second"], "2/MatMul"),
        helper.make_node("Mul", ["product_of_the_second", "scale_of_the_second"], ["second"], "2/Mul"),
        helper.make_node("Add", ["second", "offset"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes,
        "wordy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_names_and_repeated_constants_go_and_values_stay() -> None:
    model, before = wordy_graph(), wordy_graph()
    shorten_names(model)
    onnx.checker.check_model(model, full_check=True)
    stored = [tensor.name for tensor in model.graph.initializer]
    assert stored[:2] == ["layer.first.weight", "layer.second.weight"]  # equal weights stay two weights
    assert len(stored) == 4
    assert model.ByteSize() < before.ByteSize()
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("x", "y")
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    after, expected = (ReferenceEvaluator(graph).run(None, {"x": x})[0] for graph in (model, before))
    assert np.array_equal(after, expected)


def test_compacting_twice_changes_nothing() -> None:
    model = wordy_graph()
    shorten_names(model)
    once = model.SerializeToString()
    shorten_names(model)
    assert model.SerializeToString() == once
