"""Fake quantization follows the ONNX operators and passes gradients straight through."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qat_tft.profiling.operator_count import count_operators
from qat_tft.quantization.fake_quant import fake_quantize, fake_quantize_rows, fake_quantize_weight, weight_scale
from qat_tft.quantization.scheme import IntegerRange

UINT8, SEVEN_BITS = IntegerRange(0, 255), IntegerRange(-64, 63)


def onnx_round_trip(x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int | None) -> np.ndarray:
    """QuantizeLinear and DequantizeLinear in onnx's reference evaluator."""
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    shapes = {"x": x, "s": scale, "z": zero_point}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in shapes.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(nodes, "round_trip", values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.checker.check_model(model)
    return ReferenceEvaluator(model).run(None, shapes)[0]


@given(
    scale=st.floats(2**-10, 8, width=32),
    zero_point=st.integers(0, 255),
    values=st.lists(st.floats(-2000, 2000, width=32), min_size=1, max_size=30),
)
def test_rounding_equals_onnx_for_one_range(scale, zero_point, values):
    x = np.array(values, np.float32)
    ours = fake_quantize(torch.tensor(x), torch.tensor(scale), torch.tensor(float(zero_point)), UINT8)
    theirs = onnx_round_trip(x, np.array(scale, np.float32), np.array(zero_point, np.uint8), None)
    assert np.array_equal(ours.numpy(), theirs)


def test_rounding_equals_onnx_for_a_range_per_variable():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3, 5, 4)).astype(np.float32)
    scale, zero_point = np.array([0.01, 0.1, 1.0], np.float32), np.array([0, 128, 255], np.uint8)
    shape = (3, 1, 1)
    ours = fake_quantize(
        torch.tensor(x), torch.tensor(scale).view(shape), torch.tensor(zero_point).float().view(shape), UINT8
    )
    assert np.array_equal(ours.numpy(), onnx_round_trip(x, scale, zero_point, 0))


def test_gradient_passes_inside_the_range_and_stops_outside():
    x = torch.tensor([-3.0, -0.1, 0.0, 1.26, 25.5, 26.0], requires_grad=True)
    fake_quantize(x, torch.tensor(0.1), torch.tensor(0.0), UINT8).backward(torch.arange(1.0, 7.0))
    # -0.1 has code -1, below the range; 25.5 has code 255, the last one inside.
    assert x.grad.tolist() == [0, 0, 3, 4, 5, 0]


def test_values_are_the_same_with_and_without_a_gradient():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    arguments = (torch.tensor(0.05), torch.tensor(30.0), UINT8)
    assert torch.equal(fake_quantize(x, *arguments), fake_quantize(x.clone().requires_grad_(), *arguments))


def test_half_precision_is_rounded_in_single_precision():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0)).bfloat16()
    arguments = (torch.tensor(0.05), torch.tensor(30.0), UINT8)
    ours = fake_quantize(x, *arguments)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, fake_quantize(x.float(), *arguments).bfloat16())


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ranges", [(), (4, 1)], ids=["one range", "a range per row"])
def test_under_autocast_numbers_are_those_of_a_conversion_afterwards_without_one(given, ranges):
    random = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(4, 50, generator=random).to(given), torch.randn(4, 50, generator=random).bfloat16()
    arguments = (torch.rand(ranges, generator=random) * 0.01 + 0.004, torch.full(ranges, 128.0), UINT8)
    expected, direct = x.clone().requires_grad_(), x.clone().requires_grad_()
    fake_quantize(expected, *arguments).backward(gradient.to(given))
    with torch.autocast("cpu", torch.bfloat16):
        calls = count_operators(lambda: fake_quantize(direct, *arguments).backward(gradient))
        converted = fake_quantize(x, *arguments)
    assert converted.dtype is torch.bfloat16
    assert torch.equal(converted, fake_quantize(x, *arguments).bfloat16())
    assert direct.grad.dtype is given
    assert torch.equal(direct.grad, expected.grad)
    assert 0 < (direct.grad == 0).sum() < x.numel(), "some codes must saturate"
    assert "aten._to_copy.default" not in calls


def test_under_autocast_a_weight_is_rounded_as_a_conversion_afterwards_would_have_it():
    weight = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        calls = count_operators(lambda: fake_quantize_weight(weight, SEVEN_BITS))
        converted, rows = fake_quantize_weight(weight, SEVEN_BITS), fake_quantize_rows(weight, SEVEN_BITS)
    assert "aten._to_copy.default" not in calls
    assert converted.dtype is torch.bfloat16
    assert torch.equal(converted, fake_quantize_weight(weight, SEVEN_BITS).bfloat16())
    assert torch.equal(rows, fake_quantize_weight(weight, SEVEN_BITS)), "rows of tables go into no product"
    trained = weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        fake_quantize_weight(trained, SEVEN_BITS).sum().backward()
    assert torch.equal(trained.grad, torch.ones(3, 40))


def test_weight_codes_stay_inside_and_reach_the_top_of_their_range():
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    codes = fake_quantize_weight(weight, SEVEN_BITS) / weight_scale(weight, SEVEN_BITS)
    assert torch.equal(codes.abs().amax(1).round(), torch.full((6,), 63.0))
    assert (fake_quantize_weight(weight, SEVEN_BITS) - weight).abs().max() <= weight_scale(weight, SEVEN_BITS).max() / 2


def test_weight_gradient_passes_whole():
    weight = torch.randn(3, 4, requires_grad=True, generator=torch.Generator().manual_seed(0))
    fake_quantize_weight(weight, SEVEN_BITS).backward(torch.full((3, 4), 2.0))
    assert torch.equal(weight.grad, torch.full((3, 4), 2.0))


@pytest.mark.parametrize("shape", [(2, 4), (3, 2, 4)], ids=["linear", "per variable"])
def test_a_row_of_zeros_stays_zero(shape):
    assert torch.equal(fake_quantize_weight(torch.zeros(shape), SEVEN_BITS), torch.zeros(shape))
