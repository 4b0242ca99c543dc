import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_tft.export.verify.saturation import largest_pair, saturation
from qat_tft.quantization.scheme import PAIR_LIMIT


def product(weight: np.ndarray) -> onnx.ModelProto:
    """One product of 8-bit activations and an 8-bit weight, and one of floats, which must not be counted."""
    values = {
        "scale": np.float32(0.1),
        "zero": np.uint8(7),
        "one": np.float32(1),
        "weight": weight,
        "none": np.int8(0),
        "floats": np.ones((weight.shape[-1], 2), np.float32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["levels"]),
        helper.make_node("DequantizeLinear", ["levels", "scale", "zero"], ["activation"]),
        helper.make_node("DequantizeLinear", ["weight", "one", "none"], ["matrix"]),
        helper.make_node("MatMul", ["activation", "matrix"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "floats"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", weight.shape[-2]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "integers", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def tried_pair(weight: np.ndarray) -> int:
    """The same bound by trying every pair of weights of a column with the activations 0 and 255."""
    columns = weight.astype(int).reshape(-1, *weight.shape[-2:]).transpose(0, 2, 1).reshape(-1, weight.shape[-2])
    return max(
        abs(a * w + b * v)
        for column in columns
        for w, v in itertools.combinations(column, 2)
        for a, b in itertools.product((0, 255), repeat=2)
    )


@pytest.mark.parametrize("shape", [(6, 3), (2, 5, 4), (2, 1)], ids=str)
def test_the_bound_is_reached_by_some_pair_and_exceeded_by_none(shape: tuple[int, ...]) -> None:
    weight = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    assert largest_pair(weight) == tried_pair(weight)


def test_a_single_weight_makes_no_pair() -> None:
    assert largest_pair(np.array([[-100]], np.int8)) == 25500


@pytest.mark.parametrize(
    ("weight", "saturating"),
    [
        pytest.param([[63], [63], [-64], [-64]], 0, id="7 bits"),
        pytest.param([[65], [63]], 0, id="at the limit"),
        pytest.param([[65], [64]], 1, id="one beyond"),
        pytest.param([[127], [0], [0], [127]], 1, id="apart"),
        pytest.param([[127, -127], [0, 0]], 0, id="in different columns"),
        pytest.param([[-127], [-2]], 1, id="negative"),
    ],
)
def test_a_product_saturates_where_two_weights_of_a_column_are_large_together(weight: list, saturating: int) -> None:
    found = saturation(product(np.array(weight, np.int8)))
    assert (found.products, found.saturating) == (1, saturating)
    assert (found.largest > PAIR_LIMIT) == bool(saturating)


def test_a_product_of_bare_integers_is_looked_at() -> None:
    node = helper.make_node("MatMulInteger", ["codes", "W", "zero", "none"], ["y"])
    for largest, saturating in ((63, 0), (127, 1)):
        weight = numpy_helper.from_array(np.full((4, 2), largest, np.int8), "W")
        found = saturation(helper.make_model(helper.make_graph([node], "product", [], [], [weight])))
        assert (found.products, found.saturating) == (1, saturating)


def test_both_weights_of_an_integer_lstm_are_looked_at() -> None:
    quiet, loud = np.ones((1, 2, 8), np.int8), np.full((1, 2, 8), -127, np.int8)
    operands = ["x", "W", "R", "", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", operands, ["y"], domain="com.microsoft", hidden_size=2)
    for weights, saturating in (((quiet, quiet), 0), ((loud, quiet), 1), ((quiet, loud), 1)):
        tensors = [numpy_helper.from_array(value, name) for name, value in zip("WR", weights, strict=True)]
        model = helper.make_model(helper.make_graph([node], "recurrence", [], [], tensors))
        assert saturation(model).saturating == saturating


def test_a_weight_that_is_not_in_the_file_may_be_anything() -> None:
    model = product(np.ones((4, 2), np.int8))
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "weight"))
    assert saturation(model).saturating == 1
