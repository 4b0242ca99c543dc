"""Folding a trained model is exact algebra; the loss and q-risk are the paper's."""

from __future__ import annotations

import pytest
import torch

from qat_tft.checkpointing.segments import run_directly
from qat_tft.model.folding import merge_second_into_gate
from qat_tft.model.inference import CutSelection
from qat_tft.model.loss import q_risk, quantile_loss

EXACT = 1e-10  # double precision


def test_merged_gates_and_cut_chunks_give_the_same_forecast(make_model, sizes):
    model = make_model(selection="exact").double().eval()
    inputs = [tensor.double() for tensor in sizes.inputs(5, torch.Generator().manual_seed(1))]
    expected = model(*inputs)
    for folded in (merge_second_into_gate(model), model.folded()):
        for ours, theirs in zip(folded(*inputs), expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=EXACT, atol=EXACT)
        assert not any(name.endswith("second.weight") for name, _ in folded.named_parameters())


@pytest.mark.parametrize("chunk", [None, 1, 2, 100])
def test_a_selection_laid_out_for_inference_is_the_same_function_in_any_chunks(make_model, sizes, chunk):
    model = merge_second_into_gate(make_model(selection="exact").double().eval())
    selection = model.historical_selection
    historical = sizes.inputs(5, torch.Generator().manual_seed(1))[1].double()
    context = torch.randn(5, 8, dtype=torch.double)
    for x in (historical, historical[:, 0]):  # a sequence, and one row per series
        found = CutSelection(selection, chunk)(x, context, run_directly)
        for ours, theirs in zip(found, selection(x, context, run_directly), strict=True):
            assert ours.shape == theirs.shape
            assert torch.allclose(ours, theirs, rtol=EXACT, atol=EXACT)


def test_the_wider_a_variable_is_the_fewer_are_computed_together(make_model):
    sizes = {}
    for hidden in (256, 512):
        model = merge_second_into_gate(make_model(hidden=hidden, selection="exact"))
        sizes[hidden] = CutSelection(model.historical_selection).sizes
    assert sizes == {256: ([4, 1], [2]), 512: ([2, 2, 1], [2])}


def test_folding_leaves_the_model_as_it_was(make_model):
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.folded()
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def naive_pinball(prediction: float, target: float, level: float) -> float:
    return level * (target - prediction) if target >= prediction else (1 - level) * (prediction - target)


@pytest.fixture
def forecast():
    torch.manual_seed(0)
    return torch.randn(4, 3, 2), torch.randn(4, 3), (0.2, 0.7)


def test_quantile_loss_equals_a_loop_over_its_definition(forecast):
    prediction, target, levels = forecast
    total = sum(
        naive_pinball(prediction[b, f, q].item(), target[b, f].item(), level)
        for b in range(4)
        for f in range(3)
        for q, level in enumerate(levels)
    )
    assert quantile_loss(prediction, target, levels).item() == pytest.approx(total / (4 * 3), rel=1e-5)


def test_q_risk_is_twice_the_loss_over_the_sum_of_absolute_targets(forecast):
    prediction, target, levels = forecast
    for q, level in enumerate(levels):
        loss = sum(
            naive_pinball(prediction[b, f, q].item(), target[b, f].item(), level) for b in range(4) for f in range(3)
        )
        expected = 2 * loss / target.abs().sum().item()
        assert q_risk(prediction, target, levels)[q].item() == pytest.approx(expected, rel=1e-5)


def test_missing_targets_count_neither_in_the_loss_nor_in_the_q_risk(forecast):
    prediction, target, levels = forecast
    some = target.clone()
    some[1, 2] = some[3] = torch.nan
    there = ~some.isnan()
    alone = prediction[there].unsqueeze(1), target[there].unsqueeze(1)  # each as a window of one step
    assert quantile_loss(prediction, some, levels).item() == pytest.approx(quantile_loss(*alone, levels).item())
    assert q_risk(prediction, some, levels).tolist() == pytest.approx(q_risk(*alone, levels).tolist())


def test_a_missing_target_has_a_gradient_of_zero_whatever_is_forecast(forecast):
    prediction, target, levels = forecast
    some = target.clone()
    some[1, 2] = torch.nan
    prediction = prediction.clone().requires_grad_()
    quantile_loss(prediction, some, levels).backward()
    assert (prediction.grad[1, 2] == 0).all()
    assert (prediction.grad[~some.isnan()] != 0).all()


def test_no_target_at_all_is_a_loss_of_zero_with_gradients_of_zero(forecast):
    prediction, target, levels = forecast
    prediction = prediction.clone().requires_grad_()
    loss = quantile_loss(prediction, torch.full_like(target, torch.nan), levels)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(prediction.grad, torch.zeros_like(prediction))
