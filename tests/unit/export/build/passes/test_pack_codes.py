"""Packed codes: every value survives, one Cast reads them, and onnxruntime computes the same bits from them."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from qat_tft.export.build.passes.pack_codes import PACKED, pack_codes, packed_tensor, unpack_codes
from qat_tft.export.graph_edit import constant_values, value_of

RANDOM = np.random.default_rng(0)
LAYER = "enrichment.first"
VERSIONS = {4: (21, 10), 2: (25, 13)}


@given(bits=st.sampled_from([4, 2]), rows=st.integers(1, 5), columns=st.integers(1, 7), seed=st.integers(0, 99))
def test_packed_codes_are_read_back_whatever_their_number(bits, rows, columns, seed):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    codes = np.random.default_rng(seed).integers(low, high, (rows, columns)).astype(np.int8)
    tensor = packed_tensor("w", codes, bits)
    assert (tensor.data_type, len(tensor.raw_data)) == (PACKED[bits], -(-codes.size * bits // 8))
    assert np.array_equal(value_of(tensor), codes)
    assert value_of(tensor).dtype == np.int8


@pytest.mark.parametrize(("bits", "code"), [(4, 8), (4, -9), (2, 2), (2, -3)])
def test_a_code_that_does_not_fit_is_refused(bits, code):
    with pytest.raises(ValueError, match=f"{bits} bits hold"):
        packed_tensor("w", np.array([[0, code]], np.int8), bits)


def product(bits: int, form: str) -> ModelProto:
    """A product with a weight of few bits: of codes, or of floats over a weight that is cast and scaled."""
    weight = RANDOM.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (16, 6)).astype(np.int8)
    name = f"model.{LAYER}.weight"
    constants = {name: weight, "s": np.full(6, 0.1, np.float32), "z": np.zeros(6, np.int8), "xs": np.float32(0.02)}
    constants |= {"xz": np.uint8(128), "model.head.weight": RANDOM.integers(-100, 100, (6, 2)).astype(np.int8)}
    if form == "integer":
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
            helper.make_node("DequantizeLinear", [name, "s", "z"], ["w"], axis=1),
            helper.make_node("MatMul", ["d", "w"], ["h"]),
        ]
    else:
        nodes = [
            helper.make_node("Cast", [name], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "s"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["h"]),
        ]
    nodes += [
        helper.make_node("Cast", ["model.head.weight"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    used = {operand for node in nodes for operand in node.input}
    tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items() if key in used]
    ends = [helper.make_tensor_value_info(key, TensorProto.FLOAT, ["b", width]) for key, width in (("x", 16), ("y", 2))]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], tensors)
    opset, ir_version = VERSIONS[bits]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def outputs(model: ModelProto, *, optimized: bool) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)})[0]


@pytest.mark.parametrize("form", ["integer", "float"])
@pytest.mark.parametrize("bits", [4, 2])
def test_the_layer_is_packed_behind_one_cast_and_nothing_else_changes(bits, form):
    model, wide = product(bits, form), product(bits, form)
    wide.CopyFrom(model)
    assert pack_codes(model, {LAYER: bits}) == 1
    onnx.checker.check_model(model)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert types[f"model.{LAYER}.weight"] == PACKED[bits]
    assert types["model.head.weight"] == TensorProto.INT8
    readers = [node.op_type for node in model.graph.node if f"model.{LAYER}.weight" in node.input]
    assert readers == ["Cast"]
    assert len(model.graph.node) == len(wide.graph.node) + (form == "integer")
    for optimized in (True, False):
        assert np.array_equal(outputs(model, optimized=optimized), outputs(wide, optimized=optimized))


@pytest.mark.parametrize("form", ["integer", "float"])
def test_unpacking_gives_the_graph_of_before_its_constants_and_its_bits(form):
    model = product(4, form)
    before = constant_values(model)
    pack_codes(model, {LAYER: 4})
    assert unpack_codes(model) == 1
    assert not any(tensor.data_type in PACKED.values() for tensor in model.graph.initializer)
    after = constant_values(model)
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    assert np.array_equal(outputs(model, optimized=True), outputs(product_like(model, before), optimized=True))
    assert [node.op_type for node in model.graph.node] == [node.op_type for node in product(4, form).graph.node]


def product_like(model: ModelProto, constants: dict[str, np.ndarray]) -> ModelProto:
    same = ModelProto()
    same.CopyFrom(model)
    for tensor in same.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(constants[tensor.name], tensor.name))
    return same
