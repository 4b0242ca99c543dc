"""The QAT model: what is quantized, how ranges survive, and that its integer form is the same function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qat_tft.errors import CalibrationError
from qat_tft.model.layers import VariableLinear
from qat_tft.quantization.calibrate import Calibrator, calibrate
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.layers import QuantizedLinear, QuantizedVariableLinear
from qat_tft.quantization.prepare import QATTemporalFusionTransformer, require_calibrated
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import TARGETS, scheme_for

SAME_FUNCTION = 1e-4  # of the largest output: single precision, and now and then a code that falls the other way

MERGED = 1e-6  # single precision: a sum of 16 products, its scales applied in another order


def batches(sizes, count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [sizes.inputs(8, generator) for _ in range(count)]


def ranges(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_buffers()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("selection", "layer"),
    [("exact", "historical_selection.gate"), ("tabulated", "historical_selection.weighing.gate")],
)
def test_every_layer_with_a_matrix_product_is_quantized_or_listed_with_a_reason(make_model, selection, layer):
    model = QATTemporalFusionTransformer(make_model(selection=selection), scheme_for("x86"))
    listed = {name for name, _ in model.float_layers()} | set(model.quantized_layers())
    modules = model.model.named_modules()
    holders = {name for name, module in modules if any(True for _ in module.parameters(recurse=False))}
    assert holders == listed
    assert not any(type(module) in (nn.Linear, nn.LSTM) for module in model.modules())
    assert {"head", "lstm_encoder.cell", layer, "temporal_attention.attention.query"} <= set(model.quantized_layers())
    assert all(reason for _, reason in model.float_layers())


def test_the_fp32_model_is_not_changed(make_model, sizes):
    fp32 = make_model()
    before = ranges(fp32) | {name: p.detach().clone() for name, p in fp32.named_parameters()}
    model = QATTemporalFusionTransformer(fp32, scheme_for("x86"))
    calibrate(model, batches(sizes))
    assert same(ranges(fp32) | {name: p.detach() for name, p in fp32.named_parameters()}, before)


def test_in_phase_float_it_computes_what_the_fp32_model_computes(make_model, sizes):
    fp32 = make_model().eval()
    model = QATTemporalFusionTransformer(fp32, scheme_for("x86")).eval()
    inputs = batches(sizes)[0]
    assert torch.allclose(model(*inputs).quantiles, fp32(*inputs).quantiles, atol=1e-5)


def test_ranges_after_calibration_survive_evaluation_saving_and_loading(make_model, make_qat_model, sizes):
    model = make_qat_model()
    calibrated = ranges(model)
    model.eval()
    for phase in ("qat", "frozen"):
        model.set_phase(phase)
        for inputs in batches(sizes, seed=9):
            model(*inputs)
    assert same(ranges(model), calibrated)
    other = QATTemporalFusionTransformer(make_model(seed=5), scheme_for("x86"))
    assert not same(ranges(other), calibrated)
    other.load_state_dict(model.state_dict())
    assert same(ranges(other), calibrated)
    integer_model(other)
    assert same(ranges(other), calibrated)


@pytest.mark.parametrize("target", TARGETS)
def test_the_integer_form_is_the_same_function_and_holds_int8_weights(target, make_qat_model, sizes):
    model = make_qat_model(hidden=16, target=target).eval()
    model.set_phase("frozen")
    integer = integer_model(model)
    for inputs in batches(sizes, seed=4):
        expected, ours = model(*inputs), integer(*inputs)
        assert (ours.quantiles - expected.quantiles).abs().max() <= SAME_FUNCTION * expected.quantiles.abs().max()
        assert (ours.historical_weights - expected.historical_weights).abs().max() <= 1e-2
    sizes_in_bytes = {
        dtype: sum(t.nbytes for t in [*integer.buffers(), *integer.parameters()] if t.dtype == dtype)
        for dtype in (torch.int8, torch.float32)
    }
    assert sizes_in_bytes[torch.int8] > 0.5 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("target", ["x86", "tensorrt"])
def test_scales_zero_points_and_bias_merge_after_a_batched_product_without_a_change(target):
    torch.manual_seed(0)
    scheme = scheme_for(target)
    layer = QuantizedVariableLinear(VariableLinear(5, 16, 6), scheme)
    x = torch.randn(5, 40, 16) * torch.tensor([0.1, 1.0, 5.0, 30.0, 2.0]).view(-1, 1, 1) + 0.5
    layer.input.phase = Phase.CALIBRATE
    layer.chunks([5])[0](x)
    layer.input.phase = Phase.FROZEN
    merged = layer.cut([2, 3]).chunks([2, 3])
    for part, ours, theirs in zip((slice(0, 2), slice(2, 5)), merged, layer.chunks([2, 3]), strict=True):
        expected = theirs(x[part])
        assert (ours(x[part]) - expected).abs().max() <= MERGED * expected.abs().max()


def test_scales_of_the_integer_form_are_those_of_the_fake_quantizers(make_qat_model):
    model = make_qat_model(selection="exact")
    integer = integer_model(model)
    assert integer.head.input.scale == model.quantizers()["head"].scale.item()
    names = integer.historical_selection.gate.names
    scales = torch.cat([integer.historical_selection.gate.get_buffer(chunk[3]) for chunk in names])
    assert torch.equal(scales, model.quantizers()["historical_selection.gate"].scale)


def test_chunk_sizes_agree_to_rounding_also_when_quantized(make_qat_model, sizes):
    inputs = batches(sizes, seed=4)[0]
    forecasts = []
    for chunk in (1, 100):
        model = make_qat_model(selection_chunk=chunk).eval()
        forecasts.append(model(*inputs).quantiles)
    assert torch.allclose(*forecasts, atol=1e-2 * forecasts[0].abs().max().item())


def test_calibration_restores_mode_and_phase_and_counts_refused_batches(make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86")).train()
    good = batches(sizes)
    broken = [tensor.clone() for tensor in good[0]]
    broken[1][0, 0, 0] = float("nan")
    report = calibrate(model, [good[0], tuple(broken), good[1]])
    assert (report.batches, report.refused) == (2, (1,))
    assert model.training
    assert model.phase is Phase.FLOAT
    assert all(torch.isfinite(value).all() for value in ranges(model).values())


def test_calibration_without_a_usable_batch_is_refused(make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"))
    with pytest.raises(CalibrationError, match="no batch to calibrate on"):
        calibrate(model, [])
    nothing = tuple(torch.full_like(tensor, float("inf")) for tensor in batches(sizes)[0])
    with pytest.raises(CalibrationError, match="all 1 calibration batches"):
        calibrate(model, [nothing])
    assert model.phase is Phase.FLOAT


def test_an_uncalibrated_model_is_refused_by_the_names_of_its_layers(make_model):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"))
    with pytest.raises(CalibrationError, match=r"static_selection.*never calibrated"):
        require_calibrated(model)
    with pytest.raises(CalibrationError):
        integer_model(model)


def test_skipped_layers_stay_float_and_unknown_names_are_refused(make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), skip=frozenset({"head"}))
    assert isinstance(model.model.head, nn.Linear)
    assert ("head", "left out by name") in model.float_layers()
    calibrate(model, batches(sizes))
    integer_model(model)
    with pytest.raises(ValueError, match="'no_such'"):
        QATTemporalFusionTransformer(make_model(), scheme_for("x86"), skip=frozenset({"no_such"}))


def test_a_layer_of_an_unknown_kind_is_an_error_unless_skipped(make_model):
    fp32 = make_model()
    fp32.head = nn.Bilinear(8, 8, 3)
    with pytest.raises(TypeError, match="head is a Bilinear"):
        QATTemporalFusionTransformer(fp32, scheme_for("x86"))
    QATTemporalFusionTransformer(fp32, scheme_for("x86"), skip=frozenset({"head"}))


@pytest.mark.parametrize("calibrator", list(Calibrator))
def test_every_calibrator_sets_every_range_and_leaves_no_statistics_behind(calibrator, make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"))
    calibrate(model, batches(sizes), calibrator)
    assert not any(quantizer.fault for quantizer in model.quantizers().values())
    assert all(quantizer.statistics is None for quantizer in model.quantizers().values())
    widths = {name: quantizer.maximum - quantizer.minimum for name, quantizer in model.quantizers().items()}
    widest = QATTemporalFusionTransformer(make_model(), scheme_for("x86"))
    calibrate(widest, batches(sizes), Calibrator.MIN_MAX)
    for name, quantizer in widest.quantizers().items():
        assert (widths[name] <= (quantizer.maximum - quantizer.minimum) * (1 + 1e-6)).all()


def test_training_moves_a_calibrated_range_on_from_where_it_is(make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"))
    calibrate(model, batches(sizes), Calibrator.PERCENTILE)
    head = model.quantizers()["head"]
    before = head.maximum.clone()
    model.set_phase("qat")
    seen = []
    head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].max()))
    model.train()(*batches(sizes, seed=7)[0])
    assert head.batches.item() == 4
    assert head.maximum.item() == pytest.approx(before.item() + (seen[0].item() - before.item()) / 4, rel=1e-5)


@pytest.mark.parametrize("calibrator", list(Calibrator))
def test_a_part_that_never_ran_is_an_error_under_every_calibrator(calibrator, make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"))
    model.model.head.spare = QuantizedLinear(nn.Linear(2, 2), scheme_for("x86"))
    with pytest.raises(CalibrationError, match=r"head\.spare: 1 of \d+ quantizers were never calibrated"):
        calibrate(model, batches(sizes), calibrator)


def test_a_calibration_that_fails_leaves_ranges_and_quantizers_as_they_were(make_qat_model, sizes):
    model = make_qat_model()
    before = ranges(model)
    with pytest.raises(RuntimeError):
        calibrate(model, [(torch.zeros(1), torch.zeros(1), torch.zeros(1))], Calibrator.MSE)
    assert same(ranges(model), before)
    assert all(quantizer.statistics is None for quantizer in model.quantizers().values())


def test_a_model_with_nothing_left_to_quantize_is_refused(make_model):
    names = QATTemporalFusionTransformer(make_model(), scheme_for("x86")).roundings()
    with pytest.raises(ValueError, match="nothing to quantize"):
        QATTemporalFusionTransformer(make_model(), scheme_for("x86"), skip=frozenset(names))
