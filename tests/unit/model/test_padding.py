"""Padded steps of a history take no part in a forecast: not by value, not by gradient, not by their number of mates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import run_directly
from qat_tft.model.loss import quantile_loss
from qat_tft.model.seasonal import SeasonalTemporalFusionTransformer
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for
from qat_tft.schema import GroupSize

PRESENT = 3
"""Place of `history.present` among the five real columns."""
PADDED = (0, 1, 4, 5)
"""Padded steps of each window of a batch, of a history of 6."""
ROUNDING = 1e-6  # other batch sizes take other blocks of a matrix product


@pytest.fixture
def padded_sizes(sizes):
    return replace(sizes, historical=GroupSize(5, (4, 6), present=PRESENT))


def padded_inputs(sizes, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    static, historical, future = sizes.inputs(len(PADDED), torch.Generator().manual_seed(seed))
    historical[..., PRESENT] = 1.0
    for window, steps in enumerate(PADDED):
        historical[window, :steps, PRESENT] = 0.0
    return static, historical, future


def with_other_padding(historical: Tensor, value: float) -> Tensor:
    row = torch.full(historical.shape[-1:], value)
    row[PRESENT], row[5:] = 0.0, 3.0  # codes stay codes
    changed = torch.where(historical[..., PRESENT : PRESENT + 1] == 0, row, historical)
    assert not torch.equal(changed, historical)
    return changed


@pytest.fixture(params=["fp32", "qat", "integer", "folded", "seasonal"])
def model(request, make_model, padded_sizes):
    if request.param == "seasonal":
        torch.manual_seed(0)
        groups = padded_sizes.static, padded_sizes.historical, padded_sizes.future
        return SeasonalTemporalFusionTransformer(*groups, season=1, history=6, horizon=3, hidden=8, heads=2).eval()
    model = make_model(padded_sizes).eval()
    if request.param == "folded":
        return model.folded()
    if request.param == "fp32":
        return model
    qat = QATTemporalFusionTransformer(model, scheme_for("x86"))
    calibrate(qat, [padded_inputs(padded_sizes, seed) for seed in (1, 2)])
    qat.set_phase("frozen")
    return qat.eval() if request.param == "qat" else integer_model(qat)


@torch.no_grad()
@pytest.mark.parametrize("value", [0.0, 1e6, -torch.inf, torch.nan], ids=str)
def test_what_padding_holds_changes_no_bit(model, padded_sizes, value):
    static, historical, future = padded_inputs(padded_sizes)
    expected = model(static, historical, future)
    found = model(static, with_other_padding(historical, value), future)
    assert torch.isfinite(expected.quantiles).all()
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@torch.no_grad()
def test_padding_gets_no_attention_and_every_other_step_some(model, padded_sizes):
    forecast = model(*padded_inputs(padded_sizes))
    for window, steps in enumerate(PADDED):
        assert (forecast.attention[window, :, :steps] == 0).all()
        assert (forecast.attention[window, 0, steps : padded_sizes.history + 1] > 0).all()
        assert torch.allclose(forecast.attention[window].sum(-1), torch.ones(padded_sizes.horizon))


@torch.no_grad()
def test_a_forecast_depends_on_neither_the_order_of_the_batch_nor_its_mates(model, padded_sizes):
    inputs = padded_inputs(padded_sizes)
    together = model(*inputs).quantiles
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(model(*(tensor[order] for tensor in inputs)).quantiles, together[order])
    for window in range(len(PADDED)):
        alone = model(*(tensor[window : window + 1] for tensor in inputs)).quantiles
        assert torch.allclose(alone[0], together[window], atol=ROUNDING)


@torch.no_grad()
def test_whether_a_step_is_there_matters(model, padded_sizes):
    static, historical, future = padded_inputs(padded_sizes)
    whole = historical.clone()
    whole[..., PRESENT] = 1.0
    found, expected = model(static, whole, future).quantiles, model(static, historical, future).quantiles
    assert torch.equal(found[0], expected[0])  # has no padding
    assert (found[1:] != expected[1:]).flatten(1).any(1).all()


@torch.no_grad()
def test_padding_enters_the_lstm_as_zeros(make_model, padded_sizes):
    seen = {}

    def record(name, function, *tensors):
        seen.setdefault(name, tensors[0] if tensors else None)
        return run_directly(name, function, *tensors)

    make_model(padded_sizes).eval()(*padded_inputs(padded_sizes), run_segment=record)
    for window, steps in enumerate(PADDED):
        assert (seen["lstm_encoder"][window, :steps] == 0).all()
        assert (seen["lstm_encoder"][window, steps:] != 0).all()


@pytest.mark.parametrize("phase", ["fp32", "qat"])
def test_checkpointing_changes_no_bit_of_a_padded_batch(make_model, padded_sizes, phase):
    def gradients(mode: str) -> list[Tensor]:
        model = make_model(padded_sizes, dropout=0.2)
        if phase == "qat":
            model = QATTemporalFusionTransformer(model, scheme_for("x86"))
            calibrate(model, [padded_inputs(padded_sizes)])
            model.set_phase("qat")
        torch.manual_seed(0)
        forecast = model.train()(*padded_inputs(padded_sizes), run_segment=runner_for(mode))
        quantile_loss(forecast.quantiles, torch.ones(len(PADDED), 3), (0.1, 0.5, 0.9)).backward()
        return [forecast.quantiles, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    for ours, theirs in zip(gradients("full"), gradients("off"), strict=True):
        assert torch.equal(ours, theirs)


def test_no_gradient_reaches_what_padding_holds(make_model, padded_sizes):
    static, historical, future = padded_inputs(padded_sizes)
    historical.requires_grad_()
    make_model(padded_sizes)(static, historical, future).quantiles.sum().backward()
    for window, steps in enumerate(PADDED):
        assert (historical.grad[window, :steps] == 0).all()
        assert (historical.grad[window, steps:, 0] != 0).all()
