"""Layers of which only the weight is rounded: the rounding written out, its gradient, and its integer form."""

from __future__ import annotations

import pytest
import torch

from qat_tft.model.layers import AffineVariables, with_ones
from qat_tft.model.selection import InputLinear
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.stored import StoredAffine, StoredLinear

ROUNDING = 1e-6  # single precision: sums of a few products in another order
STEPS = 127  # an eight-bit code has one of 127 magnitudes beside 0


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """Each row [..., n] on a grid of its own, from minus to plus its largest magnitude."""
    step = rows.abs().amax(-1, keepdim=True) / STEPS
    return (rows / step).round() * step


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return StoredLinear(InputLinear(6, 4))


@pytest.fixture
def affine():
    torch.manual_seed(0)
    return StoredAffine(AffineVariables(torch.randn(5, 8), 10 * torch.randn(5, 8)))


@pytest.mark.parametrize("phase", [Phase.QAT, Phase.FROZEN])
def test_a_linear_layer_rounds_its_weight_and_not_its_input(linear, phase):
    linear.phase = phase
    x = 1e6 * torch.randn(3, 6)  # an outlier beside which a range of 8 bits would leave nothing
    x[:, 1:] = torch.randn(3, 5)
    assert torch.allclose(linear(x), x @ rounded(linear.weight).t() + linear.bias, rtol=ROUNDING)


@pytest.mark.parametrize("phase", [Phase.QAT, Phase.FROZEN])
def test_weights_and_biases_of_a_variable_have_a_scale_each(affine, phase):
    affine.phase = phase
    scalars = with_ones(torch.randn(7, 5))
    (whole,) = affine.chunks([5])
    expected = scalars[..., :1] * rounded(affine.weight).unsqueeze(1) + rounded(affine.bias).unsqueeze(1)
    assert torch.allclose(whole(scalars), expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("phase", [Phase.FLOAT, Phase.CALIBRATE])
def test_before_quantization_nothing_is_rounded(linear, affine, phase):
    linear.phase = affine.phase = phase
    x = torch.randn(3, 6)
    assert torch.equal(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias))
    assert torch.equal(affine.rows(), torch.stack([affine.weight, affine.bias], 1))


def test_gradients_pass_the_rounding_whole(linear, affine):
    linear.phase = affine.phase = Phase.QAT
    x = torch.randn(3, 6)
    linear(x).sum().backward()
    assert torch.allclose(linear.weight.grad, x.sum(0).expand(4, 6))
    affine.rows().sum().backward()
    assert torch.equal(affine.weight.grad, torch.ones(5, 8))
    assert torch.equal(affine.bias.grad, torch.ones(5, 8))


@pytest.mark.parametrize("shape", [(3, 6), (2, 3, 6)])
def test_the_integer_form_of_a_linear_layer_is_the_same_function(linear, shape):
    linear.phase = Phase.FROZEN
    integer, x = linear.to_integer(), torch.randn(shape)
    assert integer.weight.dtype == torch.int8
    assert integer.weight.abs().amax() == STEPS
    assert integer(x).shape == (*shape[:-1], 4)
    assert torch.allclose(integer(x), linear(x), rtol=ROUNDING, atol=ROUNDING)


def test_the_integer_form_of_a_map_is_the_same_function_chunk_by_chunk(affine):
    affine.phase = Phase.FROZEN
    scalars = with_ones(torch.randn(7, 5))
    cut = affine.cut([2, 3])
    parts = [chunk(x) for chunk, x in zip(cut.chunks([2, 3]), scalars.split([2, 3]), strict=True)]
    (whole,) = affine.chunks([5])
    assert torch.allclose(torch.cat(parts), whole(scalars), rtol=ROUNDING, atol=ROUNDING)
    assert sum(tensor.numel() for tensor in cut.buffers() if tensor.dtype == torch.int8) == 2 * 5 * 8


def test_the_phase_of_a_model_reaches_layers_without_a_range(make_qat_model):
    model = make_qat_model(selection="exact")
    stored = [module for module in model.modules() if isinstance(module, StoredLinear | StoredAffine)]
    assert len(stored) == 9, "two maps and the weighing's input in each of three selection networks"
    assert {module.phase for module in stored} == {Phase.QAT}
    model.set_phase("frozen")
    assert {module.phase for module in stored} == {Phase.FROZEN}


def test_a_model_keeps_no_float_copy_of_what_it_stores(make_qat_model):
    model = make_qat_model(selection="exact").eval()
    model.set_phase("frozen")
    integer = integer_model(model)
    for name in ("historical_selection.real_first", "historical_selection.weighing.real"):
        weights = [t for t in integer.get_submodule(name).buffers() if t.dtype == torch.int8]
        largest = max(t.numel() for t in integer.get_submodule(name).buffers() if t.dtype == torch.float32)
        assert largest < sum(t.numel() for t in weights)
        assert not list(integer.get_submodule(name).parameters())
