import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.keep_unit_axes import keep_unit_axes

RANDOM = np.random.default_rng(0)
FIRST, SECOND = (RANDOM.normal(size=(1, 4, 4)).astype(np.float32) for _ in range(2))


def two_products(
    between: list[onnx.NodeProto], *, outputs: tuple[str, ...] = ("y",), last: str = "m"
) -> onnx.ModelProto:
    """Two products in three dimensions; `between` makes `m` [batch, 4] of `h` [batch, 4]."""
    constants = {
        "first": FIRST,
        "second": SECOND,
        "axis": np.array([0]),
        "end": np.array([1]),
        "scale": np.float32(0.1),
        "scales": np.full(3, 0.1, np.float32),
        "zeros": np.full(3, 128, np.uint8),
        "zero": np.uint8(128),
        "bias": np.linspace(-1, 1, 4, dtype=np.float32),
        "rows": np.ones((3, 4), np.float32),
        "gain": np.linspace(1, 2, 4, dtype=np.float32),
    }
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["x3"]),
        helper.make_node("MatMul", ["x3", "first"], ["h3"]),
        helper.make_node("Squeeze", ["h3", "axis"], ["h"]),
        *between,
        helper.make_node("Unsqueeze", ["m", "axis"], ["m3"]),
        helper.make_node("MatMul", ["m3", "second"], ["y3"]),
        helper.make_node("Squeeze", ["y3", "axis"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, **attributes)


ROUNDED = [
    node("QuantizeLinear", ["h", "scale", "zero"], ["q"]),
    node("DequantizeLinear", ["q", "scale", "zero"], ["m"]),
]
GATED = [
    node("Add", ["h", "bias"], ["a"]),
    node("Split", ["a"], ["value", "gate"], axis=1, num_outputs=2),
    node("Sigmoid", ["gate"], ["open"]),
    node("Mul", ["value", "open"], ["half"]),
    node("Add", ["half", "half"], ["twice"]),
    node("LayerNormalization", ["h", "gain"], ["normal"], axis=-1),
    node("Softmax", ["normal"], ["shares"], axis=1),
    node("Add", ["x", "shares"], ["m"]),  # x is known with the axis: its product has it
]


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([node("Exp", ["h"], ["m"])], id="elementwise"),
        pytest.param(ROUNDED, id="rounding"),
        pytest.param(GATED, id="a gate and a norm"),
    ],
)
def test_the_axis_stays_from_one_product_to_the_next(between: list[onnx.NodeProto]) -> None:
    model = two_products(between)
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert keep_unit_axes(model) >= 2
    onnx.checker.check_model(model, full_check=True)
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Squeeze"), kinds.count("Unsqueeze")) == (1, 1)


def test_a_value_that_is_needed_without_the_axis_is_still_there() -> None:
    model = two_products([node("Exp", ["h"], ["m"])], outputs=("y", "m"))
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    keep_unit_axes(model)
    for ours, theirs in zip(ReferenceEvaluator(model).run(None, {"x": x}), expected, strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([node("Mul", ["h", "rows"], ["m"])], id="a matrix of constants"),
        pytest.param(
            [node("ReduceSum", ["h", "end"], ["sum"], keepdims=1), node("Mul", ["sum", "h"], ["m"])], id="a sum"
        ),
        pytest.param(
            [
                node("QuantizeLinear", ["h", "scales", "zeros"], ["q"], axis=0),
                node("DequantizeLinear", ["q", "scales", "zeros"], ["m"], axis=0),
            ],
            id="a scale per row",
        ),
        pytest.param(
            [node("Exp", ["bias"], ["e"]), node("Transpose", ["h"], ["t"]), node("Transpose", ["t"], ["m"])], id="turns"
        ),
    ],
)
def test_what_depends_on_the_place_of_axes_keeps_its_place(between: list[onnx.NodeProto]) -> None:
    model = two_products(between)
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    keep_unit_axes(model)
    onnx.checker.check_model(model, full_check=True)
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Squeeze"), kinds.count("Unsqueeze")) == (2, 2)


@pytest.mark.parametrize(("end", "gone"), [("end", True), ("bound", False)])
def test_the_only_part_of_an_axis_of_size_one_is_the_whole(end: str, gone: bool) -> None:
    cut = [node("Unsqueeze", ["h", "axis"], ["u"]), node("Slice", ["u", "axis", end, "axis"], ["s"])]
    model = two_products([*cut, node("Squeeze", ["s", "axis"], ["m"])])
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**60]), "bound"))
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    keep_unit_axes(model)
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)
    assert ("Slice" not in [node.op_type for node in model.graph.node]) == gone


def test_a_graph_without_such_axes_is_left_alone() -> None:
    model = two_products([node("Exp", ["h"], ["m"])])
    for _ in range(2):
        keep_unit_axes(model)
        once = model.SerializeToString()
    assert keep_unit_axes(model) == 0
    assert model.SerializeToString() == once
