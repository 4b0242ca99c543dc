"""Which form products have: decided by hidden size and target alone, and what a model in floating point is made of."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from qat_tft.config.quantization import QuantizationConfig
from qat_tft.errors import ConfigError
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.prepare import LEFT_OUT, QATTemporalFusionTransformer
from qat_tft.quantization.products import INTEGER_FROM, INTEGER_STORAGE, products_for
from qat_tft.quantization.ranges import ActivationQuantizer, Phase
from qat_tft.quantization.rounding_costs import by_layer, by_segment, rounding_only
from qat_tft.quantization.scheme import scheme_for

ROUNDING = 1e-5  # single precision: the same products in another layout, through every layer


@pytest.fixture
def stored(make_model) -> QATTemporalFusionTransformer:
    """A model with products in floating point, its weights rounded."""
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), products="float").eval()
    model.set_phase("frozen")
    return model


@pytest.mark.parametrize(
    ("target", "smallest"),
    [("x86", INTEGER_FROM), ("arm64", INTEGER_FROM), ("portable", INTEGER_FROM), ("x86-vnni", 32), ("tensorrt", 1)],
)
def test_small_models_multiply_floats_and_large_ones_integers(target, smallest):
    sizes = (smallest - 1, smallest, 2 * smallest)
    assert [products_for(target, hidden) for hidden in sizes] == ["float", "integer", "integer"]


def test_an_unknown_target_has_no_form():
    with pytest.raises(ConfigError, match="unknown target profile 'gpu'"):
        products_for("gpu", 8)


@pytest.mark.parametrize(("asked", "decided"), [("auto", "float"), ("integer", "integer"), ("float", "float")])
def test_what_is_set_stands_and_auto_is_decided(asked, decided):
    assert QuantizationConfig(products=asked).products_at(8) == decided


def test_no_activation_is_rounded_and_every_weight_is(stored, make_qat_model):
    assert not [module for module in stored.modules() if isinstance(module, ActivationQuantizer)]
    assert stored.quantized_layers() == []
    assert list(stored.roundings()) == list(make_qat_model().roundings()), (
        "tables, and what multiplies integers otherwise"
    )
    reasons = dict(stored.float_layers())
    assert {reasons[name] for name in stored.roundings() if name not in stored.tables()} == {INTEGER_STORAGE}
    assert stored.phase is Phase.FROZEN


def test_it_forecasts_what_the_float_model_does_with_its_weights_rounded_to_eight_bits(stored, make_model, sizes):
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))
    copy = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), products="float").eval()
    with torch.no_grad():
        for name, layer in copy.roundings().items():
            if name in copy.tables():
                layer.phase = Phase.FROZEN
            for part in ("weight", "weight_ih", "weight_hh"):
                weight = getattr(layer, part, None)
                if weight is not None:
                    step = weight.abs().amax(-1, keepdim=True) / 127
                    weight.copy_((weight / step).round() * step)
        with rounding_only(stored, stored.roundings(), stored=False):
            rounded = stored(*inputs).quantiles
    assert torch.allclose(rounded, copy(*inputs).quantiles, atol=ROUNDING)
    copy.set_phase("float")
    assert not torch.allclose(rounded, make_model().eval()(*inputs).quantiles, atol=ROUNDING)


def test_the_model_of_its_file_forecasts_the_same(stored, sizes):
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))
    integer = integer_model(stored)
    assert torch.allclose(integer(*inputs).quantiles, stored(*inputs).quantiles, atol=ROUNDING)
    matrices = [buffer for buffer in integer.buffers() if buffer.dtype == torch.int8 and buffer.dim() > 1]
    trained = sum(parameter.numel() for layer in stored.roundings().values() for parameter in layer.parameters())
    assert sum(matrix.numel() for matrix in matrices) > 0.8 * trained, "all but the biases"


def test_there_is_nothing_to_calibrate(stored):
    def batches():
        raise AssertionError("no batch is needed")
        yield

    assert calibrate(stored, batches()).batches == 0


def test_the_gradient_passes_the_rounding_whole(make_model, sizes):
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), products="float").train()
    model.set_phase("qat")
    model(*inputs).quantiles.sum().backward()
    assert all(parameter.grad is not None for parameter in model.model.head.parameters())
    assert model.model.lstm_encoder.cell.weight_hh.grad.abs().sum() > 0


def test_layers_can_be_left_out_and_measured_alone(stored, make_model, sizes):
    fewer = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), frozenset({"head"}), products="float").eval()
    fewer.set_phase("frozen")
    assert fewer.left_out() == ("head",)
    assert dict(fewer.float_layers())["head"] == LEFT_OUT
    assert "head" not in fewer.roundings()
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))
    with rounding_only(stored, [name for name in stored.roundings() if name != "head"]):
        assert torch.equal(stored(*inputs).quantiles, fewer(*inputs).quantiles)
    assert not torch.equal(stored(*inputs).quantiles, fewer(*inputs).quantiles)
    assert set(by_layer(stored)) == set(stored.roundings())
    assert {"historical_selection", "lstm_encoder", "head"} <= set(by_segment(stored))


def test_with_every_layer_left_out_there_is_nothing_to_quantize(stored, make_model):
    with pytest.raises(ValueError, match="nothing to quantize"):
        QATTemporalFusionTransformer(make_model(), scheme_for("x86"), frozenset(stored.roundings()), products="float")


def test_a_linear_layer_may_have_no_bias(stored):
    layers = [layer for layer in stored.roundings().values() if getattr(layer, "bias", None) is None]
    linear = next(layer for layer in layers if getattr(layer, "weight", None) is not None)
    x = torch.randn(2, 5, linear.weight.shape[1])
    step = linear.weight.abs().amax(-1, keepdim=True) / 127
    expected = F.linear(x, (linear.weight / step).round() * step)
    assert torch.allclose(linear.to_integer()(x), expected, atol=ROUNDING)
