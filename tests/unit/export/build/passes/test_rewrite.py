from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_tft.export.build.passes.rewrite import split_gates, sum_before_norms, write_out_elus
from qat_tft.export.graph_edit import remove_unused_initializers

RANDOM = np.random.default_rng(0)
ROUNDING = 1e-6  # a product adds in another order than a Mul and an Add


def model_of(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: list[int | str], rank: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "pattern",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"y{axis}" for axis in range(rank)])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def outcome(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def gate(form: str) -> onnx.ModelProto:
    """A gated linear unit over [2, rows, 4] as the exporter writes it, in one of the forms of a weight."""
    codes = RANDOM.integers(-64, 64, (2, 4, 6)).astype(np.int8)
    constants: dict[str, np.ndarray] = {"bias": RANDOM.normal(size=(2, 1, 6)).astype(np.float32)}
    between = [helper.make_node("Add", ["bias", "product"], ["shifted"])]
    weight = [helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["weight"], axis=-1)]
    constants |= {"codes": codes, "scale": np.float32(1.0), "zero": np.int8(0)}
    if form == "float weight":
        weight = []
        constants = {"bias": constants["bias"], "weight": codes.astype(np.float32)}
    elif form == "scale per column":
        constants |= {"scale": np.linspace(0.01, 0.02, 6, dtype=np.float32), "zero": np.zeros(6, np.int8)}
    elif form in ("scales before the product", "bare codes"):
        scales = form != "bare codes"
        weight = [helper.make_node("Cast", ["codes"], ["float" if scales else "weight"], to=TensorProto.FLOAT)]
        weight += [helper.make_node("Mul", ["float", "scales"], ["weight"])] * scales
        constants = {"bias": constants["bias"], "codes": codes}
        constants |= {"scales": RANDOM.uniform(size=(2, 1, 6)).astype(np.float32)} if scales else {}
    elif form == "scales after the product":
        constants["factor"] = RANDOM.uniform(size=(2, 1, 6)).astype(np.float32)
        between.insert(0, helper.make_node("Mul", ["raw", "factor"], ["product"]))
    product = "raw" if form == "scales after the product" else "product"
    nodes = [
        *weight,
        helper.make_node("MatMul", ["x", "weight"], [product]),
        *between,
        helper.make_node("Split", ["shifted"], ["value", "gate"], axis=-1, num_outputs=2),
        helper.make_node("Sigmoid", ["gate"], ["open"]),
        helper.make_node("Mul", ["value", "open"], ["y"]),
    ]
    return model_of(nodes, constants, [2, "rows", 4], rank=3)


@pytest.mark.parametrize(
    "form",
    [
        "float weight",
        "one scale",
        "scale per column",
        "scales after the product",
        "scales before the product",
        "bare codes",
    ],
)
def test_a_gates_halves_become_two_products_of_the_same_bits(form: str) -> None:
    model = gate(form)
    x = RANDOM.normal(size=(2, 5, 4)).astype(np.float32)
    expected = outcome(model, x)
    assert split_gates(model) == 1
    remove_unused_initializers(model)
    assert np.array_equal(outcome(model, x), expected)
    assert "Split" not in kinds(model)
    assert kinds(model)["MatMul"] == 2
    stored = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT8]
    matrices = [numpy_helper.to_array(tensor) for tensor in stored if len(tensor.dims) > 1]
    assert sum(matrix.size for matrix in matrices) == (0 if form == "float weight" else 48)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda nodes: nodes[-1].input.__setitem__(0, "shifted"), id="the whole is read as well"),
        pytest.param(lambda nodes: nodes[-3].attribute[0].__setattr__("i", 0), id="another axis"),
        pytest.param(lambda nodes: nodes[0].input.__setitem__(1, "x"), id="no constant weight"),
    ],
)
def test_a_split_that_is_not_that_of_a_gate_stays(change) -> None:
    model = gate("float weight")
    change(model.graph.node)
    assert split_gates(model) == 0
    assert kinds(model)["Split"] == 1


def test_an_elu_is_written_out_and_keeps_its_values() -> None:
    model = model_of([helper.make_node("Elu", ["x"], ["y"], alpha=1.0)], {}, ["rows"], rank=1)
    x = np.array([-1e30, -90.0, -2.0, -1e-6, 0.0, 1e-6, 2.0, 90.0, 1e30], np.float32)
    expected = outcome(model, x)
    assert write_out_elus(model) == 1
    assert np.allclose(outcome(model, x), expected, atol=ROUNDING, rtol=0)
    assert "Elu" not in kinds(model)


def test_an_elu_of_another_slope_stays() -> None:
    assert write_out_elus(model_of([helper.make_node("Elu", ["x"], ["y"], alpha=0.5)], {}, ["rows"], rank=1)) == 0


@pytest.mark.parametrize(
    ("other", "after", "changed"),
    [("x", "LayerNormalization", 1), ("bias", "LayerNormalization", 0), ("x", "Softmax", 0)],
    ids=["before a norm", "of a constant", "before something else"],
)
def test_an_addition_before_a_norm_becomes_a_sum(other: str, after: str, changed: int) -> None:
    inputs = ["added", "gain"] if after == "LayerNormalization" else ["added"]
    nodes = [helper.make_node("Add", ["x", other], ["added"]), helper.make_node(after, inputs, ["y"], axis=-1)]
    constants = {"gain": RANDOM.normal(size=4).astype(np.float32), "bias": RANDOM.normal(size=4).astype(np.float32)}
    model = model_of(nodes, constants, ["rows", 4], rank=2)
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    expected = outcome(model, x)
    assert sum_before_norms(model) == changed
    assert kinds(model)["Sum"] == changed
    assert np.array_equal(outcome(model, x), expected)
