"""When activation ranges move, and when they must not."""

from __future__ import annotations

import math

import pytest
import torch

from qat_tft.quantization.ranges import AVERAGING, ActivationQuantizer, Phase
from qat_tft.quantization.scheme import scheme_for

CODES = scheme_for("x86").activations


def quantizer(phase: str, variables: int | None = None) -> ActivationQuantizer:
    module = ActivationQuantizer(CODES, variables)
    module.phase = Phase(phase)
    return module


def buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.named_buffers()}


def moved(module: torch.nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(value, before[name]) for name, value in module.named_buffers())


@pytest.mark.parametrize(
    ("phase", "training", "moves", "rounds"),
    [
        ("float", True, False, False),
        ("calibrate", True, True, False),
        ("calibrate", False, True, False),
        ("qat", True, True, True),
        ("qat", False, False, True),
        ("frozen", True, False, True),
        ("frozen", False, False, True),
    ],
)
def test_each_phase_observes_and_rounds_as_it_should(phase, training, moves, rounds):
    module = quantizer("calibrate")
    module(torch.linspace(-1, 1, 100))
    module.phase = Phase(phase)
    module.train(training)
    before, x = buffers(module), torch.linspace(-2, 3, 100)
    assert torch.equal(module(x), x) != rounds
    assert moved(module, before) == moves


def test_a_range_is_the_mean_of_the_first_batches_and_then_follows_slowly():
    module = quantizer("calibrate")
    lows, highs = [-1.0, -3.0, -2.0], [5.0, 1.0, 3.0]
    for low, high in zip(lows, highs, strict=True):
        module(torch.tensor([low, 0.5, high]))
    assert module.minimum.item() == pytest.approx(sum(lows) / 3)
    assert module.maximum.item() == pytest.approx(sum(highs) / 3)
    module.batches.fill_(1000)
    maximum = module.maximum.item()
    module(torch.tensor([0.0, 103.0]))
    assert module.maximum.item() == pytest.approx(maximum + AVERAGING * (103 - maximum))


def test_scale_and_zero_point_cover_the_range_and_hold_zero_exactly():
    module = quantizer("calibrate")
    module(torch.tensor([-1.0, 3.0]))
    assert module.scale.item() == pytest.approx(4 / 255)
    module.phase = Phase.FROZEN
    assert module(torch.tensor([0.0])).item() == 0.0
    assert module(torch.tensor([3.0])).item() == pytest.approx(3.0, abs=module.scale.item())


def test_signed_codes_are_symmetric_around_zero():
    module = ActivationQuantizer(scheme_for("tensorrt").activations)
    module.phase = Phase.CALIBRATE
    module(torch.tensor([-3.0, 1.0]))
    assert module.zero_point.item() == 0
    assert module.scale.item() == pytest.approx(3 / 127)
    module.phase = Phase.FROZEN
    assert module(torch.tensor([-100.0, 0.0, 3.0])).tolist() == pytest.approx([-128 * 3 / 127, 0.0, 3.0])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("phase", ["calibrate", "qat"])
def test_a_batch_that_is_not_finite_leaves_the_range_as_it_was(value, phase):
    module = quantizer("calibrate")
    module(torch.tensor([-1.0, 3.0]))
    module.phase = Phase(phase)
    before = buffers(module)
    module(torch.tensor([1.0, value]))
    assert not moved(module, before)


def test_a_range_per_variable_does_not_depend_on_the_chunks():
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 6.0).unsqueeze(1)
    whole, chunked = quantizer("qat", 5), quantizer("qat", 5)
    for _ in range(3):
        expected = whole(x)
        parts = [chunked(x[part], part) for part in (slice(0, 2), slice(2, 5))]
    assert torch.equal(torch.cat(parts), expected)
    assert not moved(chunked, buffers(whole))


def test_a_quantizer_that_saw_nothing_is_not_calibrated():
    module = quantizer("calibrate", 3)
    assert module.fault == "never calibrated"
    module(torch.ones(2, 4), slice(0, 2))
    assert module.fault == "never calibrated", "the third variable was never seen"
    module(torch.ones(1, 4), slice(2, 3))
    assert module.fault == ""


@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0, -1.0], ids=str)
def test_a_scale_that_is_no_positive_finite_number_is_a_fault(scale):
    module = quantizer("calibrate")
    module(torch.ones(4))
    module.scale.fill_(scale)
    assert "not a positive finite number" in module.fault


def test_activations_that_are_all_zero_stay_zero_and_are_a_fault():
    module = quantizer("calibrate")
    module(torch.zeros(4))
    module.phase = Phase.FROZEN
    assert torch.equal(module(torch.zeros(4)), torch.zeros(4))
    assert "a range of zero width" in module.fault


def test_half_precision_has_the_range_that_its_numbers_have_in_single_precision():
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    for variables in (None, 3):
        half, single = quantizer("calibrate", variables), quantizer("calibrate", variables)
        half(x)
        single(x.float())
        assert buffers(half).keys() == buffers(single).keys()
        assert not moved(half, buffers(single))
