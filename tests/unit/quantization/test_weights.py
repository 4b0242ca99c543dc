"""Weights of few bits: where their scales start, which gradients they let through, and which codes they become."""

from __future__ import annotations

import pytest
import torch

from qat_tft.checkpointing.recompute import CheckpointRunner
from qat_tft.checkpointing.segments import run_directly, segments_of
from qat_tft.quantization.bits import BitLayout
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import IntegerRange
from qat_tft.quantization.weights import (
    LOW_BITS,
    STORED,
    ScaledWeightRounding,
    WeightBits,
    WeightRounding,
    smallest_error_scale,
)

FOUR, TWO = LOW_BITS[4], LOW_BITS[2]


def random_weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def squared_error(weight: torch.Tensor, scale: torch.Tensor, codes: IntegerRange) -> torch.Tensor:
    rounded = (weight / scale).round().clamp(codes.low, codes.high) * scale
    return (rounded - weight).square().sum(-1, keepdim=True)


@pytest.mark.parametrize("codes", [FOUR, TWO], ids=str)
def test_no_scale_of_a_finer_row_has_a_noticeably_smaller_error(codes):
    weight = random_weight(20, 48)
    found = squared_error(weight, smallest_error_scale(weight, codes), codes)
    largest = weight.abs().amax(-1, keepdim=True) / min(codes.high, -codes.low)
    fine = torch.stack([squared_error(weight, largest * share, codes) for share in torch.linspace(0.05, 1.2, 2000)])
    assert (found <= 1.02 * fine.amin(0)).all()
    assert (found < 0.95 * squared_error(weight, largest, codes)).any(), "not the scale that clips nothing"


def test_a_weight_without_memory_is_not_searched(monkeypatch):
    monkeypatch.setattr(torch, "where", None)
    scale = smallest_error_scale(torch.empty(3, 5, 7, device="meta"), FOUR)
    assert (scale.is_meta, scale.shape) == (True, (3, 5, 1))


def test_each_variable_and_output_has_a_scale_of_its_own():
    weight = random_weight(3, 5, 16) * torch.tensor([0.01, 1.0, 100.0]).view(3, 1, 1)
    scale = smallest_error_scale(weight, FOUR)
    assert scale.shape == (3, 5, 1)
    apart = torch.cat([smallest_error_scale(part, FOUR).unsqueeze(0) for part in weight])
    assert torch.equal(scale, apart)


def test_a_row_of_zeros_gets_the_mean_scale_of_the_others_and_zeros_alone_get_one():
    weight = random_weight(4, 8)
    weight[2] = 0
    scale = smallest_error_scale(weight, FOUR)
    assert scale[2].item() == pytest.approx(scale[[0, 1, 3]].mean().item())
    assert torch.equal(smallest_error_scale(torch.zeros(2, 3), FOUR), torch.ones(2, 1))
    codes, _ = ScaledWeightRounding(FOUR, torch.zeros(2, 3), learned=True).integer(torch.zeros(2, 3))
    assert not codes.any()


def test_eight_bits_have_no_parameter_and_few_have_a_scale_for_each_output():
    weight = random_weight(6, 10)
    eight, four = WeightBits(8).rounding(weight), WeightBits(4).rounding(weight)
    assert (list(eight.parameters()), eight.codes, eight.bits) == ([], STORED, 8)
    assert ([p.shape for p in four.parameters()], four.codes, four.bits) == ([(6, 1)], FOUR, 4)
    assert WeightBits(2).rounding(weight).bits == 2
    assert WeightBits(8).rounding(weight, IntegerRange(-64, 63)).codes.high == 63


@pytest.mark.parametrize("learned", [True, False])
def test_a_clipped_code_gives_its_weight_no_gradient(learned):
    weight = torch.tensor([[0.3, -0.2, 9.0, -9.0]], requires_grad=True)
    rounding = ScaledWeightRounding(FOUR, weight, learned=learned)
    with torch.no_grad():
        rounding.log_scale.fill_(0.0)  # a scale of one
    rounding(weight, Phase.QAT).backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert weight.grad.tolist() == [[1.0, 2.0, 0.0, 0.0]]
    assert (rounding.log_scale.grad is not None) == learned


def test_the_gradient_of_a_scale_is_the_slope_where_codes_are_clipped():
    weight = torch.tensor([[9.0, -9.0, 12.0]])
    rounding = ScaledWeightRounding(FOUR, weight, learned=True)
    with torch.no_grad():
        rounding.log_scale.fill_(0.0)
    rounding(weight, Phase.QAT).sum().backward()
    # d/ds of (7 - 8 + 7) s is 6, divided by sqrt(3 * 7); of the logarithm it is s times that
    assert rounding.log_scale.grad.item() == pytest.approx(6 / (3 * 7) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("phase", [Phase.FLOAT, Phase.CALIBRATE])
def test_without_rounding_the_weight_is_itself(phase):
    weight = random_weight(4, 6)
    assert WeightBits(4).rounding(weight)(weight, phase) is weight


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_fake_quantized_weight_is_codes_times_scale_and_codes_stay_inside(bits):
    weight = random_weight(6, 40)
    rounding: WeightRounding = WeightBits(bits).rounding(weight)
    codes, scale = rounding.integer(weight)
    assert torch.equal(rounding(weight, Phase.FROZEN), codes.float() * scale)
    assert rounding.codes.low <= codes.min() <= codes.max() <= rounding.codes.high
    assert len(codes.unique()) > 2**bits / 3


def test_pieces_round_as_the_whole_does():
    weight = random_weight(5, 4, 8)
    for bits in (8, 4):
        rounding = WeightBits(bits, learned=True).rounding(weight)
        sizes = [2, 2, 1]
        pieces = zip(rounding.pieces(sizes), weight.split(sizes), strict=True)
        cut = torch.cat([piece(part, Phase.QAT) for piece, part in pieces])
        assert torch.equal(cut, rounding(weight, Phase.QAT))
        for piece, part in zip(rounding.pieces(sizes), weight.split(sizes), strict=True):
            assert piece(part, Phase.FLOAT) is part


@pytest.mark.parametrize("selection", ["tabulated", "exact"])
def test_recomputing_trained_scales_of_weights_changes_no_bit(selection, make_qat_model, train, differing):
    def build():
        return make_qat_model(dropout=0.2, selection=selection, layout=BitLayout(4, learned=True))

    plain = train(build(), run_directly, steps=4)
    recomputed = train(build(), CheckpointRunner(segments_of("full")), steps=4)
    assert differing(plain, recomputed) == []
    gradients = [value for name, value in plain.items() if name.startswith("gradient 3") and "log_scale" in name]
    assert len(gradients) == sum("log_scale" in name for name, _ in build().named_parameters()) > 10
    assert all(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("bits", [4, 2])
def test_the_integer_form_is_the_same_function_and_its_codes_have_few_bits(bits, make_qat_model, sizes):
    model = make_qat_model(layout=BitLayout(bits, learned=True)).eval()
    model.set_phase("frozen")
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))
    integer = integer_model(model)
    with torch.no_grad():
        assert torch.allclose(model(*inputs).quantiles, integer(*inputs).quantiles, atol=1e-5)
    codes = integer.temporal_attention.enrichment.gate.weight
    assert LOW_BITS[bits].low <= codes.min() < 0 < codes.max() <= LOW_BITS[bits].high
    assert integer.head.weight.abs().max() > 7, "the head keeps eight bits"


def test_codes_are_counted_by_weight(make_qat_model):
    codes = make_qat_model(layout=BitLayout(4)).codes()
    assert {"head.weight", "lstm_encoder.cell.weight_ih", "lstm_encoder.cell.weight_hh"} <= codes.keys()
    assert {tensor.dtype for tensor in codes.values()} == {torch.int8}
