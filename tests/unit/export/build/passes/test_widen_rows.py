import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.build.passes.widen_rows import WIDE, widen_rows

RANDOM = np.random.default_rng(0)
STEPS, BATCH, VARIABLES = 6, 3, 2


def scaled_rows(width: int, dims: list[int | str], vectors: tuple[int, ...] = (1, 1)) -> onnx.ModelProto:
    """`x` [V, N, width] times a vector, plus a vector, each with that many rows per variable."""
    constants = {
        name: RANDOM.normal(size=(VARIABLES, rows, width)).astype(np.float32)
        for name, rows in zip(("factor", "offset"), vectors, strict=True)
    }
    nodes = [
        helper.make_node("Mul", ["factor", "x"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offset"], ["shifted"]),
        helper.make_node("Exp", ["shifted"], ["y"]),
    ]
    shape = [VARIABLES, "rows", width]
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in ("scaled", "shifted")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def outcome(model: onnx.ModelProto, width: int, batch: int = BATCH) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=(VARIABLES, STEPS * batch, width)).astype(np.float32)
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("symbol", [f"{STEPS}*batch", f"batch*{STEPS}"])
@pytest.mark.parametrize("batch", [1, BATCH])
def test_rows_lie_side_by_side_and_values_stay(symbol: str, batch: int) -> None:
    model = scaled_rows(4, [VARIABLES, symbol, 4])
    expected = outcome(model, 4, batch)
    size = sum(numpy_helper.to_array(tensor).size for tensor in model.graph.initializer)
    assert widen_rows(model) == 1
    onnx.checker.check_model(model)
    assert np.array_equal(outcome(model, 4, batch), expected)
    kinds = [node.op_type for node in model.graph.node]
    assert sorted(kinds) == ["Add", "Exp", "Mul", "Reshape", "Reshape", "Tile", "Tile"], "one run of two nodes"
    wide = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name.endswith("rows.shape")]
    assert [shape.tolist() for shape in wide] == [[VARIABLES, -1, 4 * STEPS]]
    stored = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    assert sum(numpy_helper.to_array(tensor).size for tensor in stored) == size, "no vector is stored repeatedly"


@pytest.mark.parametrize(("steps", "together"), [(4 * WIDE // 64, WIDE // 64), (18, 9), (23, 1)])
def test_rows_that_would_be_too_wide_together_are_fewer(steps: int, together: int) -> None:
    width = 64
    model = scaled_rows(width, [VARIABLES, f"{steps}*batch", width])
    assert widen_rows(model) == (together > 1)
    shapes = [numpy_helper.to_array(t).tolist() for t in model.graph.initializer if t.name.endswith("rows.shape")]
    assert shapes == ([[VARIABLES, -1, together * width]] if together > 1 else [])


@pytest.mark.parametrize(
    ("width", "dims", "vectors"),
    [
        pytest.param(128, [VARIABLES, f"{STEPS}*batch", 128], (1, 1), id="wide enough"),
        pytest.param(4, [VARIABLES, "batch", 4], (1, 1), id="one row per window"),
        pytest.param(4, [VARIABLES, "unknown", 4], (1, 1), id="unknown steps"),
        pytest.param(4, [VARIABLES, f"{STEPS}*batch", 4], (STEPS * BATCH, STEPS * BATCH), id="a vector per row"),
        pytest.param(1, [VARIABLES, f"{STEPS}*batch", 1], (1, 1), id="one number"),
    ],
)
def test_other_rows_stay(width: int, dims: list[int | str], vectors: tuple[int, ...]) -> None:
    model = scaled_rows(width, dims, vectors)
    before = model.SerializeToString()
    assert widen_rows(model) == 0
    assert model.SerializeToString() == before
