"""Learned ranges: gradients after Esser et al. (2020), and what is exported, frozen and observed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qat_tft.checkpointing.recompute import CheckpointRunner
from qat_tft.checkpointing.segments import run_directly, segments_of
from qat_tft.quantization.fake_quant import fake_quantize, fake_quantize_learned
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.learned import LearnedQuantizer
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import IntegerRange

CODES = IntegerRange(0, 255)


def naive_gradients(x: Tensor, scale: Tensor, zero_point: Tensor, gradient: Tensor) -> tuple[list[float], float]:
    """Equations 3 and 5 and the factor of section 2.2, value by value."""
    to_x, to_scale = [], 0.0
    for value, incoming in zip(x.flatten().tolist(), gradient.flatten().tolist(), strict=True):
        ratio = value / float(scale)
        code = round(ratio) + float(zero_point)
        inside = CODES.low <= code <= CODES.high
        limit = CODES.low if code < CODES.low else CODES.high
        to_x.append(incoming if inside else 0.0)
        to_scale += incoming * (round(ratio) - ratio if inside else limit - float(zero_point))
    return to_x, to_scale / math.sqrt(x.shape[-1] * CODES.high)


def test_gradients_are_those_of_the_paper():
    generator = torch.Generator().manual_seed(0)
    x = (20 * torch.randn(50, 8, generator=generator)).requires_grad_()
    gradient = torch.randn(50, 8, generator=generator)
    scale, zero_point = torch.tensor(0.1, requires_grad=True), torch.tensor(100.0)
    rounded = fake_quantize_learned(x, scale, zero_point, CODES)
    rounded.backward(gradient)
    to_x, to_scale = naive_gradients(x.detach(), scale.detach(), zero_point, gradient)
    assert torch.equal(rounded, fake_quantize(x, scale.detach(), zero_point, CODES))
    assert x.grad.flatten().tolist() == to_x
    assert 0.1 < (x.grad == 0).float().mean() < 0.9, "some values saturate and some do not"
    assert scale.grad.item() == pytest.approx(to_scale, rel=1e-4)  # a sum of 400 in single precision


def test_where_values_saturate_the_gradient_is_the_slope_of_the_function():
    x, zero_point = torch.tensor([[-50.0, 90.0, 120.0]]), torch.tensor(100.0)
    scale = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    fake_quantize_learned(x, scale, zero_point, CODES).sum().backward()
    ends = [fake_quantize(x, torch.tensor(value), zero_point, CODES).sum().item() for value in (0.19, 0.21)]
    slope = (ends[1] - ends[0]) / 0.02
    assert scale.grad.item() == pytest.approx(slope / math.sqrt(3 * 255), rel=1e-3)


def test_every_variable_has_the_gradient_of_its_own_scale():
    generator = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(2, 3, 10, 4, generator=generator)
    scale = torch.tensor([0.01, 0.1, 1.0]).view(3, 1, 1).requires_grad_()
    zero_point = torch.tensor([10.0, 128.0, 250.0]).view(3, 1, 1)
    fake_quantize_learned(x, scale, zero_point, CODES).backward(gradient)
    for place in range(3):
        expected = naive_gradients(x[place], scale[place].detach(), zero_point[place], gradient[place])[1]
        assert scale.grad[place].item() == pytest.approx(expected, rel=1e-4)


def quantizer(phase: str = "calibrate", variables: int | None = None) -> LearnedQuantizer:
    module = LearnedQuantizer(CODES, variables)
    module.phase = Phase(phase)
    return module


def test_the_gradient_of_a_scale_does_not_depend_on_how_many_rows_there_are():
    gradients = []
    for rows in (1, 100):
        module = quantizer("qat", variables=2)
        module(torch.full((2, rows, 4), 0.3)).mean((1, 2)).sum().backward()
        gradients.append(module.log_scale.grad)
    assert torch.allclose(*gradients, rtol=1e-5)


@pytest.mark.parametrize(
    ("phase", "training", "learns"),
    [
        ("float", True, False),
        ("calibrate", True, False),
        ("qat", True, True),
        ("qat", False, False),
        ("frozen", True, False),
    ],
)
def test_the_scale_learns_in_training_in_phase_qat_and_observes_in_calibration_only(phase, training, learns):
    module = quantizer()
    module(torch.linspace(-1, 3, 100))
    assert module.scale.item() == pytest.approx(4 / 255, rel=1e-6)
    module.phase = Phase(phase)
    module.train(training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(torch.linspace(-2, 5, 100).requires_grad_()).square().sum().backward()
    assert (module.log_scale.grad is not None) == learns
    changed = [name for name, value in module.state_dict().items() if not torch.equal(value, before[name])]
    assert bool(changed) == (phase == "calibrate")


def test_a_scale_stays_positive_however_far_it_is_driven_down():
    module = quantizer()
    module(torch.linspace(-1, 3, 100))
    module.phase = Phase.QAT
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        module.log_scale.sum().backward()
        optimizer.step()
    assert 0 < module.scale.item() < 1e-9
    assert not module.fault


@pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "no early stop"])
@pytest.mark.parametrize("forwards", [1, 2])
def test_recomputing_learned_ranges_changes_no_bit(forwards, early_stop, make_qat_model, train, differing):
    def build() -> QATTemporalFusionTransformer:
        return make_qat_model(dropout=0.2, learned_ranges=True)

    runner = CheckpointRunner(segments_of("full"), early_stop=early_stop)
    plain = train(build(), run_directly, steps=4, forwards=forwards)
    recomputed = train(build(), runner, steps=4, forwards=forwards)
    assert differing(plain, recomputed) == []
    gradients = [value for name, value in plain.items() if name.startswith("gradient 3") and "log_scale" in name]
    assert len(gradients) == len(build().quantizers())
    assert all(gradient.any() for gradient in gradients)


def test_the_exported_scale_is_the_learned_one(make_qat_model, sizes):
    generator = torch.Generator().manual_seed(0)
    model = make_qat_model(learned_ranges=True, selection="exact")
    calibrated = {name: module.scale.clone() for name, module in model.quantizers().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(*sizes.inputs(8, generator)).quantiles.square().sum().backward()
        optimizer.step()
    scales = {name: module.scale for name, module in model.quantizers().items()}
    assert not any(torch.equal(scales[name], calibrated[name]) for name in scales)
    integer = integer_model(model)
    assert integer.head.input.scale == scales["head"].item()
    gate = integer.historical_selection.gate
    assert torch.equal(
        torch.cat([gate.get_buffer(names[3]) for names in gate.names]), scales["historical_selection.gate"]
    )
